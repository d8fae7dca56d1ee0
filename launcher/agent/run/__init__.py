"""Run one attempt on this host: the agent, its workers, their output, and the relay to the launcher."""

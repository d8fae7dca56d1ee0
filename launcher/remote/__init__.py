"""Talk to the agents of hosts: frames, sessions, questions, commands."""

"""Exchange messages with the agents of hosts: frames, sessions, queries, commands."""

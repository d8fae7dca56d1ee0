"""The agent, podrun's supervisor on a host: it starts the workers, keeps their output, and leaves no process behind.

    agent run RUN          reads a spec (one JSON line) from stdin, starts the agent in the background, then relays to it
    agent attach DIR       relays to the agent that runs in DIR
    agent sweep RUN HOST   kills the processes that a dead agent left behind
    agent rest DIR         sends the output that a dead agent had not sent
    agent prepare          unpacks code, builds the environment, reports the host's facts
    agent execute          runs one command, and kills it if the connection ends
    agent facts            reports the host's facts
    agent listen, reach    test whether one host can reach another
    agent share, see       test whether hosts share a folder
    agent clean            lists or removes the folders and processes of finished runs

A relay copies frames (JSON lines) between its own stdin/stdout and the agent's socket, so a dropped connection ends a relay
and not the agent. This package is sent to hosts as one file: Python 3.8+, standard library only, nothing else of podrun.

Invariants:
1. Each worker runs in its own session and ends with the agent: the agent stops it, then kills every descendant, and
   repeats until none is left. If the agent itself is killed, the kernel kills the workers (PR_SET_PDEATHSIG) and, where a
   PID namespace is permitted, everything that they started.
2. Without a frame from the launcher for `lease` seconds the agent stops the workers and ends.
3. What workers print and report goes to files in DIR first, then to the launcher by byte offset. A launcher that attaches
   states its offsets, and gets everything beyond them once and in order.
4. The agent signals only processes that it started, and their descendants.
5. Only one run at a time holds the host.

`base/to_agent.py` and `base/from_agent.py` declare the messages between launcher and agent.
"""

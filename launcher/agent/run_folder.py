"""Names of files in the folder of an agent's run, from which it is also known that an agent was there."""

from __future__ import annotations

SOCKET = "agent.sock"
LOG = "agent.log"

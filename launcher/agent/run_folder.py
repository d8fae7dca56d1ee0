"""File names in an agent's run folder. Their presence shows that an agent has run there."""

from __future__ import annotations

SOCKET = "agent.sock"
LOG = "agent.log"

"""Everything that podrun raises on purpose, as a tree:

UserError                  bad input: shown as it is, exit code 2   (podrun.runtime.contract)
LaunchError                the pod could not be started: exit code 69
  HostError                ... because of one host, which it names
"""

from __future__ import annotations


class LaunchError(Exception):
    """The pod could not be started. Its text names what is missing."""


class HostError(LaunchError):
    """One host could not be reached or could not start its agent."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason

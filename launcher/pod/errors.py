"""Everything that podrun raises on purpose, as a tree:

UserError                  bad input: shown as it is, exit code 2   (podrun.runtime.contract)
HostError                  one host could not be reached or could not start its agent: exit code 69
"""

from __future__ import annotations


class HostError(Exception):
    """One host could not be reached or could not start its agent."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"{host}: {reason}")
        self.host = host
        self.reason = reason

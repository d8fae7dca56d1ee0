"""Check a host's key against known_hosts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paramiko import PKey, SSHClient

from .errors import Unreachable
from .known_hosts import KnownHosts, KnownKey, fingerprint

_USER = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


@dataclass(frozen=True)
class HostKeyCheck:
    """Decides whether a host's key is accepted. paramiko asks it about every key: its own list of known hosts is empty."""

    name: str
    """Name of the host in known_hosts."""
    known_hosts: KnownHosts
    files: Sequence[Path]
    """Files to search. A new key is appended to the first one."""
    accept_new: bool
    ssh: str
    """Command for the user to connect by hand and see the key."""

    def kinds(self) -> set[str]:
        """Return the types of the host's known keys. The host must present a key of one of these."""
        return {known.kind for known in self._known() if not known.revoked}

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        """Accept the key, or raise Unreachable."""
        shown, known = key.asbytes(), self._known()
        same = [k for k in known if k.key == shown]
        if any(k.revoked for k in same):
            raise Unreachable(f"its host key is marked as revoked in {same[0].file} line {same[0].line}")
        if same:
            return
        if known := [k for k in known if not k.revoked]:
            raise Unreachable(self._changed(key, known))
        if not self.accept_new:
            raise Unreachable(self._unknown(key))
        try:
            self.known_hosts.add(self.name, key.get_name(), shown, self.files[0])
        except OSError as error:
            raise Unreachable(
                f"its host key is new, and cannot be added to {self.files[0]}: {error.strerror}"
            ) from None

    def _known(self) -> list[KnownKey]:
        return self.known_hosts.find(self.name, self.files)

    def _unknown(self, key: PKey) -> str:
        return (
            f"unknown host key: {self.name} is not in {self.files[0]}; it shows {_describe(key)}\n"
            f"connect once with `{self.ssh}`, or set `host_keys: accept-new` under `ssh:` in a pod file for --pod"
        )

    def _changed(self, key: PKey, known: list[KnownKey]) -> str:
        first = next((k for k in known if k.kind == key.get_name()), known[0])
        remove = shlex.join(["ssh-keygen", "-f", str(first.file), "-R", self.name])
        return (
            f"its host key has CHANGED: {first.file} line {first.line} has {first.kind} {fingerprint(first.key)}, "
            f"{self.name} shows {_describe(key)}\n"
            f"if the host was reinstalled, remove its old key with `{remove}`; if not, the connection may be intercepted"
        )


def known_hosts_files(given: Path | None, options: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the known_hosts files to search: the one in the pod file, otherwise the files that ssh uses."""
    if given is not None:
        return (given.expanduser(),)
    user = options.get("userknownhostsfile", "").split() or _USER
    system = options.get("globalknownhostsfile", "").split() or _SYSTEM
    names = [name.strip('"') for name in (*user, *system)]
    return tuple(Path(name).expanduser() for name in names if name != "none" and "%" not in name) or (
        Path("/dev/null"),
    )


def _describe(key: PKey) -> str:
    return f"{key.get_name()} {fingerprint(key.asbytes())}"

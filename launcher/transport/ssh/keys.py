"""Log in with private keys, offered in a fixed order."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paramiko import Agent, AuthenticationException, PKey, SSHException, Transport
from paramiko.ssh_exception import BadAuthenticationType

from .errors import Unreachable

_DEFAULTS = tuple(Path("~/.ssh") / name for name in ("id_ed25519", "id_ecdsa", "id_rsa"))


class KeyFiles:
    """Private keys by path; each file is read once. Thread-safe."""

    def __init__(self) -> None:
        self._keys: dict[Path, PKey | str | None] = {}
        self._lock = threading.Lock()

    def get(self, path: Path) -> PKey | str | None:
        """Return the key, or the reason why it cannot be used; None if the file does not exist."""
        with self._lock:
            if path not in self._keys:
                self._keys[path] = _load(path.expanduser())
            return self._keys[path]


@dataclass
class Login:
    """Logs in as `user`. Offers the key of the pod file, then those of ssh_config and ssh-agent, then the default keys."""

    user: str
    where: str
    files: KeyFiles
    key: Path | None
    """Key in the pod file, which must exist; None: the file names none."""
    identities: Sequence[Path]
    """Keys in ssh_config. Missing files are skipped, as in ssh."""
    identities_only: bool

    def authenticate(self, transport: Transport) -> None:
        """Authenticate; paramiko calls this. Raises Unreachable."""
        try:
            agent = Agent()  # one per login: its connection is not thread-safe
        except (SSHException, OSError):
            return self._offer(transport, {})
        try:
            return self._offer(transport, {key.asbytes(): key for key in agent.get_keys()})
        finally:
            agent.close()

    def _offer(self, transport: Transport, agent: Mapping[bytes, PKey]) -> None:
        tried, accepted = [], ["publickey"]
        for label, key in self._keys(agent):
            tried.append(f"{label} (not tried: {key})" if isinstance(key, str) else label)
            if isinstance(key, str):
                continue
            try:
                if not (more := transport.auth_publickey(self.user, key)):
                    return
                raise Unreachable(f"{self.where} requires more than a key of {self.user}: {', '.join(more)}")
            except BadAuthenticationType as error:
                accepted = error.allowed_types
                break
            except AuthenticationException as error:
                if "timeout" in str(error):
                    raise Unreachable(f"{self.where} did not answer to the login of {self.user}", again=True) from None
            if not transport.is_active():
                tried[-1] += ", after which it closed the connection"
                break
        raise Unreachable(self._refused(tried, accepted))

    def _refused(self, tried: list[str], accepted: list[str]) -> str:
        if "publickey" not in accepted:
            return f"{self.where} accepts no keys, only {', '.join(accepted)}; podrun logs in by key"
        keys = f"keys tried: {', '.join(tried)}" if tried else "there is no key to try"
        return (
            f"{self.where} refused the login of {self.user}; {keys}\n"
            f"add the public key to ~/.ssh/authorized_keys of {self.user} there; or name another key or user with "
            "`key` and `user` under `ssh:` in a pod file for --pod"
        )

    def _keys(self, agent: Mapping[bytes, PKey]) -> Iterator[tuple[str, PKey | str]]:
        """Yield each key to offer, or the reason why it cannot be used, with its label."""
        named = [path for path in (self.key, *self.identities) if path is not None]
        for path in named:
            key = self.files.get(path)
            if not isinstance(key, PKey):
                key = agent.get(_public(path), key)
            if path is self.key and not isinstance(key, PKey):
                raise Unreachable(f"ssh key {path} {key or 'does not exist'}")
            if key is not None:
                yield str(path), key
        if not self.identities_only:
            yield from ((f"{key.comment or key.get_name()} of ssh-agent", key) for key in agent.values())
        if not named:
            yield from ((str(path), key) for path in _DEFAULTS if (key := self.files.get(path)) is not None)


def _load(path: Path) -> PKey | str | None:
    try:
        return PKey.from_path(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except (TypeError, AuthenticationException):  # raised for a missing passphrase
        return f"has a passphrase, and podrun asks for none; give it to ssh-agent: ssh-add {path}"
    except Exception:
        return "is not a private key that paramiko can read"


def _public(path: Path) -> bytes:
    """Return a public key as SSH sends it; empty if there is none. `path`: its file, or the file of its private key."""
    for file in (path.expanduser(), path.expanduser().with_name(path.name + ".pub")):
        try:
            return base64.b64decode(file.read_text().split()[1], validate=True)
        except (OSError, ValueError, IndexError):
            continue
    return b""

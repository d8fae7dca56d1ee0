"""Read secret values from a file of NAME=VALUE lines and from the launcher's environment."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from podrun.runtime.contract import UserError

from .pod import Pod

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*)")
_QUOTED = re.compile(r"(['\"])(.*?)\1\s*(?:#.*)?")


class Secrets(Mapping[str, str]):
    """Secret values by name. The repr shows only the names, so logs and tracebacks contain no values."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"


def read_secrets(pod: Pod, env: Mapping[str, str] = os.environ) -> Secrets:
    """Return the values of `pod.secrets`: from the environment, otherwise from `pod.secrets_file`.

    Raises UserError if secrets are missing, with the places searched, or if the file has mistakes.
    """
    in_file = read_secrets_file(pod.secrets_file) if pod.secrets_file and pod.secrets else Secrets({})
    missing = missing_secrets(pod.secrets, in_file, env)
    if missing:
        raise UserError("\n".join(f"secrets: {missing_secret_message(name, pod.secrets_file)}" for name in missing))
    return Secrets({name: env.get(name) or in_file[name] for name in pod.secrets})


def secrets_at_hand(pod: Pod, env: Mapping[str, str] = os.environ) -> list[str]:
    """Return those values of `pod.secrets` that are available now, to hide them in output."""
    try:
        in_file: Mapping[str, str] = read_secrets_file(pod.secrets_file) if pod.secrets_file and pod.secrets else {}
    except UserError:
        in_file = {}
    return [value for name in pod.secrets for value in (env.get(name), in_file.get(name)) if value]


def missing_secrets(names: Sequence[str], in_file: Mapping[str, str], env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names that have no value, or an empty one, in file and environment."""
    return [name for name in names if not env.get(name) and not in_file.get(name)]


def missing_secret_message(name: str, file: Path | None) -> str:
    """Return the message for a secret without a value, and what to do."""
    places = f"the environment or {file}" if file else "the environment"
    remedy = f"export it, or write {name}=VALUE into {file or 'a file and name that under secrets_file'}"
    return f"{name} is not set in {places}; {remedy}"


def read_secrets_file(path: Path) -> Secrets:
    """Parse a secrets file. Empty lines, `# comments`, `export ` and quotes around values are allowed.

    Raises UserError if the file cannot be read, is readable by others, or has a line that is not NAME=VALUE.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a file of NAME=VALUE lines") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file (not UTF-8); give a file of NAME=VALUE lines") from None
    if mode & 0o077:
        raise UserError(f"others may read {path} (its mode is {mode:04o}); run: chmod 600 {path}")
    values, wrong = {}, []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            name, value = _parse_line(line.strip())
            values[name] = value
        except ValueError as error:
            wrong.append(f"line {number} {error}")
    if wrong:
        raise UserError(f"{path}: {'; '.join(wrong[:5])}")
    return Secrets(values)


def _parse_line(line: str) -> tuple[str, str]:
    """Return (name, value) of a line. Raises ValueError for other lines; the message does not contain the line."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("is not NAME=VALUE")
    name, value = match[1], match[2]
    if value[:1] in ("'", '"'):
        quoted = _QUOTED.fullmatch(value)
        if quoted is None:
            raise ValueError("has a quote that is not closed")
        value = quoted[2]
    return name, value

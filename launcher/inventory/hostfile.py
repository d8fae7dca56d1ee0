"""Read a hostfile in the format of MPI and DeepSpeed: one line `HOST slots=N` per host."""

from __future__ import annotations

from pathlib import Path

from podrun.runtime.contract import UserError

from ..pod.pod import Host
from ..pod.ranges import LIMIT, count, expand
from ..yamlfile.mistakes import Row, mistakes_error
from ..yamlfile.short import short
from .base import Listing


def read_hostfile(path: Path) -> Listing:
    """Return the hosts of a hostfile. Raises UserError that lists every mistake with its line."""
    title = f"hostfile {path}"
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{title}: cannot read it: {reason}; give a file with a line `HOST slots=N` per host") from None
    except UnicodeDecodeError:
        raise UserError(f"{title}: is not a text file (not UTF-8); write a line `HOST slots=N` per host") from None
    hosts: dict[str, int] = {}
    slots: dict[int, int | None] = {}
    mistakes: list[Row] = []
    total = 0
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        total += count(words[0])
        if total > LIMIT:  # checked before the names are built
            mistakes.append((number, f"line {number}: more than {LIMIT} hosts up to here, which is the limit"))
            break
        try:
            names, slots[number] = expand(_host(words[0])), _slots(words[1:])
            _add(hosts, names, number)
        except ValueError as error:
            mistakes.append((number, f"line {number}: {short(line.strip())}: {error}"))
    mistakes += _unequal(slots)
    if not hosts and not mistakes:
        raise UserError(f"{title}: has no hosts; write a line `HOST slots=N` for each")
    if mistakes:
        raise mistakes_error(title, mistakes)
    return Listing(tuple(Host(name, name) for name in hosts), next(iter(slots.values())))


from_option = read_hostfile


def _host(word: str) -> str:
    name, colon, slots = word.rpartition(":")
    if colon and ":" not in name and slots.isdigit():
        raise ValueError(f"write the number of devices as `{name} slots={slots}`")
    return word


def _slots(words: list[str]) -> int | None:
    if not words:
        return None
    key, equals, number = words[0].partition("=")
    if len(words) > 1 or key != "slots" or not equals:
        raise ValueError("only `slots=N` may follow the host")
    if not number.isdecimal() or not 1 <= int(number) <= 9999:
        raise ValueError("slots must be the number of devices on the host, 1 or more")
    return int(number)


def _add(hosts: dict[str, int], names: list[str], line: int) -> None:
    for name in names:
        if name in hosts:
            raise ValueError(f"{name} is in line {hosts[name]} already; keep one of them")
        hosts[name] = line


def _unequal(slots: dict[int, int | None]) -> list[Row]:
    """Return a mistake for each host with other slots than the first: all hosts of a slice have equally many devices."""
    if not slots:
        return []
    first_line, first = next(iter(slots.items()))

    def shown(number: int | None) -> str:
        return "no slots" if number is None else f"slots={number}"

    return [
        (line, f"line {line}: {shown(number)}, but {shown(first)} in line {first_line}; all hosts must have the same")
        for line, number in slots.items()
        if number != first
    ]

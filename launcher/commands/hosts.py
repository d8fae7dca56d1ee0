"""`podrun hosts`: which hosts have failed in runs from this machine, and why. `podrun hosts clear` forgives them."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.wording import counted

from ..pod.ranges import expand, split_hosts
from ..run.bad_hosts import how_to_clear
from ..rundir.host_history import HostHistory, HostKey, worst_first
from ..rundir.host_record import clear_hosts, read_hosts, record_path
from ..view.printable import in_one_line
from ..view.text_table import shorten, text_table
from ..view.times import moment

_WIDTH = 80  # columns, where there is no terminal
_NAME, _KINDS = 20, 19  # characters of these columns, at most
_KIND, _RUN = 10, 4  # characters of the kind of a failure, and of the end of its run's id
_DESCRIBED = 8  # bad hosts whose failures are shown, the worst
_SHOWN = 3  # failures of a host that are shown, the latest


def show_hosts(as_json: bool) -> int:
    """Print the hosts that have failed, the worst first, and the failures of those that are bad. Raises UserError."""
    histories, damaged = read_hosts()
    if damaged:
        print(f"podrun: {counted(damaged, 'damaged line')} of {record_path()} ignored", file=sys.stderr)
    if as_json:
        print(json.dumps([_row(history) for history in worst_first(histories.values())], indent=1))
        return ExitCode.DONE
    failed = [history for history in worst_first(histories.values()) if history.failures]
    well = len(histories) - len(failed)
    if not histories:
        print(f"no hosts in {record_path()}; runs on other machines are recorded there")
    if failed:
        width = os.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
        labels = _labels(histories)
        print(_table(failed, labels))
        bad = [history for history in failed if history.is_bad]
        for history in bad[:_DESCRIBED]:
            print("\n".join(_why(history, labels[history.key], max(40, width))))
        if len(bad) > _DESCRIBED:
            print(f"and {len(bad) - _DESCRIBED} more bad hosts; `podrun hosts --json` has their failures")
        if bad:
            print(how_to_clear([history.key.address for history in bad]))
    if well:
        print(f"{counted(well, 'host')} without failures")
    return ExitCode.DONE


def clear(names: Sequence[str]) -> int:
    """Forgive the failures of hosts so far. Raises UserError with all unknown names."""
    histories, _ = read_hosts()
    mistakes: list[str] = []
    chosen: dict[HostKey, HostHistory] = {}
    for name in _expanded(names, mistakes):
        matches = [one for one in histories.values() if name in (one.key.address, one.name)]
        matches = [one for one in matches if one.failures] or matches
        matches = [one for one in matches if one.key.address == name] or matches
        if len({one.key.address for one in matches}) > 1:
            fitting = ", ".join(sorted({in_one_line(one.key.address) for one in matches}))
            mistakes.append(f"{name} is the name of {len(matches)} hosts; give an address: {fitting}")
        elif not matches:
            mistakes.append(_unknown(name, histories))
        chosen |= {one.key: one for one in matches}
    if mistakes:
        raise UserError("\n".join(mistakes))
    failed = [history for history in chosen.values() if history.failures]
    if failed:
        try:
            clear_hosts([history.key for history in failed])
        except OSError as error:
            raise UserError(f"cannot write {record_path()}: {error.strerror or error}; nothing was changed") from None
    addresses = _with_places(histories)
    for history in chosen.values():
        count = len(history.failures)
        forgiven = f"{counted(count, 'failure')} forgiven" if count else "it has no failures"
        name = "" if history.name == history.key.address else f"{in_one_line(history.name)}, "
        print(f"{name}{addresses[history.key]}: {forgiven}")
    return ExitCode.DONE


def _expanded(names: Sequence[str], mistakes: list[str]) -> list[str]:
    """Return the hosts that the words name, each once. Appends the mistakes in them."""
    hosts: dict[str, None] = {}
    for word in names:
        for entry in split_hosts(word) or [word]:
            try:
                hosts |= dict.fromkeys(expand(entry))
            except ValueError as error:
                mistakes.append(f"{entry!r}: {error}")
    return [*hosts]


def _unknown(name: str, histories: Mapping[HostKey, HostHistory]) -> str:
    names = {text for one in histories.values() for text in (one.name, one.key.address)}
    near = difflib.get_close_matches(name, names, n=1) if len(names) <= 1000 else []
    meant = f"did you mean {in_one_line(near[0])}?" if near else "`podrun hosts` lists those that have failed"
    return f"there is no host {name} in the record of hosts; {meant}"


def _row(history: HostHistory) -> dict[str, object]:
    return {
        "host": history.name,
        "address": history.key.address,
        "place": history.key.place,
        "state": "bad" if history.is_bad else "ok",
        "runs": history.runs,
        "recent_runs": len(history.recent),
        "last_run": history.last_run,
        "failures": [failure._asdict() for failure in history.failures],
    }


def _labels(histories: Mapping[HostKey, HostHistory]) -> dict[HostKey, str]:
    """Return what each host is called: its name, or its address, with the place if needed, if another shares the name."""
    names = Counter(one.name for one in histories.values())
    places = _with_places(histories)
    return {key: in_one_line(one.name) if names[one.name] == 1 else places[key] for key, one in histories.items()}


def _with_places(histories: Iterable[HostKey]) -> dict[HostKey, str]:
    """Return the address of each host, with its place if that address is at several places."""
    keys = [*histories]
    addresses = Counter(key.address for key in keys)
    return {
        key: in_one_line(key.address if addresses[key.address] == 1 else f"{key.address} ({key.place})") for key in keys
    }


def _table(failed: Sequence[HostHistory], labels: Mapping[HostKey, str]) -> str:
    """Return the table of the hosts that have failed."""
    rows = [("HOST", "RUNS", "FAILED", "KINDS", "LAST", "STATE")]
    for one in failed:
        last = moment(max(failure.time for failure in one.failures))
        state = "bad" if one.is_bad else "ok"
        kinds = shorten(in_one_line(one.kinds), _KINDS)
        rows.append((shorten(labels[one.key], _NAME), str(one.runs), str(len(one.failures)), kinds, last, state))
    return text_table(rows, right=[1, 2])


def _why(history: HostHistory, label: str, width: int) -> list[str]:
    """Return the latest failures of a bad host, as lines of at most `width` columns."""
    runs = counted(len(history.recent), "run") if len(history.recent) > 1 else "run"
    rows = [
        (moment(one.time), shorten(in_one_line(one.kind), _KIND), in_one_line(one.run)[-_RUN:], in_one_line(one.what))
        for one in history.failures[-_SHOWN:]
    ]
    title = f"{label}: {len(history.failures)} failures in its last {runs}"
    return [_cut(title, width), *(f"  {_cut(line, width - 2)}" for line in text_table(rows).splitlines())]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."

"""Time the output of many hosts to files here: podrun against plain ssh processes, in one run.

    sudo python benchmarks/streaming.py [--hosts 64] [--lines 10000] [--rounds 3]

The hosts are one sshd in a network namespace that answers on as many loopback addresses. Each prints the lines at once, as
fast as it can; at the end every line must be in its host's file, once and in order. `ssh` is one OpenSSH process per host
with its output in a file, connecting included. podrun's time is taken twice: from the first process that it starts to the
last line (the streaming), and the whole command.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import yaml
from setting import print_setting

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.hosts import LiteHosts, why_not

FORMAT = "%010.0f the quick brown fox jumps over the lazy dog, and then it goes on to the next one"


def expected(lines: int) -> str:
    return "".join(f"{i:010d}{FORMAT[7:]}\n" for i in range(1, lines + 1))


def program(lines: int) -> list[str]:
    return ["seq", "-f", FORMAT, str(lines)]


def by_ssh(hosts: LiteHosts, lines: int, folder: Path) -> float:
    """Return the seconds for ssh processes, one for each host."""
    options = ["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "KexAlgorithms=curve25519-sha256"]
    options += ["-i", str(hosts.key), "-o", f"UserKnownHostsFile={hosts.known_hosts}", "-l", "root"]
    command = " ".join(f"'{word}'" for word in program(lines))
    script = "".join(
        f'ssh {" ".join(options)} {address} "{command}" > {folder}/{address}.log </dev/null &\n'
        for address in hosts.addresses
    )
    begin = time.perf_counter()
    hosts.run(["sh", "-c", script + "wait"], timeout=300)
    return time.perf_counter() - begin


def by_podrun(hosts: LiteHosts, lines: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of the streaming, and of the whole command."""
    pod = {
        "slice": f"cpu-{len(hosts.addresses)}x1",
        "hosts": hosts.addresses,
        "ssh": {"user": "root", "key": str(hosts.key), "known_hosts": str(hosts.known_hosts)},
        "python": sys.executable,
    }
    (folder / "pod.yaml").write_text(yaml.safe_dump(pod))
    (folder / "project").mkdir()
    command = [sys.executable, "-m", "podrun.launcher.cli", "--json", "--pod", "../pod.yaml", "--", *program(lines)]
    env = {**hosts.env, "PODRUN_HOME": str(folder / "home")}
    begin = time.perf_counter()
    done = hosts.run(command, timeout=300, cwd=folder / "project", env=env)
    whole = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"podrun failed: {done.stderr[-2000:]}")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    started = [e["time"] for e in events if e["event"] == "host" and e["phase"] == "started"]
    stopped = [e["time"] for e in events if e["event"] == "host" and e["phase"] == "stopped"]
    (run,) = (folder / "home" / "runs").iterdir()
    for log in (run / "logs").iterdir():
        log.rename(folder / log.name)
    return max(stopped) - min(started), whole


def check(hosts: LiteHosts, lines: int, folder: Path) -> None:
    text = expected(lines)
    for address in hosts.addresses:
        if (folder / f"{address}.log").read_text() != text:
            sys.exit(f"{folder}/{address}.log is not what {address} printed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print_setting()
    if reason := why_not():
        sys.exit(reason)
    total = args.hosts * args.lines
    rows: dict[str, list[float]] = {"ssh": [], "podrun, streaming": [], "podrun, whole command": []}
    hosts = LiteHosts(args.hosts)
    try:
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as name:
                rows["ssh"].append(by_ssh(hosts, args.lines, Path(name)))
                check(hosts, args.lines, Path(name))
            with tempfile.TemporaryDirectory() as name:
                streaming, whole = by_podrun(hosts, args.lines, Path(name))
                check(hosts, args.lines, Path(name))
                rows["podrun, streaming"].append(streaming)
                rows["podrun, whole command"].append(whole)
    finally:
        hosts.close()
    print(
        f"{args.hosts} hosts x {args.lines} lines, {os.cpu_count()} cores, median of {args.rounds}; all lines in order"
    )
    base = statistics.median(rows["ssh"])
    for what, seconds in rows.items():
        median = statistics.median(seconds)
        print(f"{what:<24}{median:7.2f} s {total / median / 1000:8.0f} k lines/s {base / median:6.2f} x ssh")


if __name__ == "__main__":
    main()

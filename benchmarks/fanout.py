"""Time a command on many hosts at once: podrun's SSH transport against asyncssh, pdsh and OpenSSH.

    python benchmarks/fanout.py [--hosts 16 64 256] [--rounds 3]

Every tool connects to all hosts, with strict host keys, and runs `true`; then it runs `true` once more, over the same
connections if it keeps them. All hosts are one sshd on as many loopback addresses, in a network namespace of its own: the
server's share of the work, which is most of it, is done by the same cores and is the same for all. Needs root, sshd, ip and
nsenter; asyncssh, pdsh and ssh are left out where they are missing. The tools take turns, each in its own process; its CPU
seconds are user and system time of that process and its children.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hosts import LiteHosts, why_not

WINDOW = 64
CURVE = "curve25519-sha256"  # half of what OpenSSH's default key exchange costs, and more, is post-quantum


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), metavar="TOOL")
    args = parser.parse_args()
    print_setting()
    if reason := why_not():
        raise SystemExit(reason)
    tools = [name for name in args.tools if is_there(name)]
    if len(tools) < len(args.tools):
        print(f"not installed: {', '.join(sorted(set(args.tools) - set(tools)))}")
    print(
        f"seconds, medians of {args.rounds} rounds; wall: connect + `true`, and `true` again; CPU of the client only\n"
    )
    print(f"{'hosts':>5}  {'':<16}{'connect':>8}{'again':>8}{'wall':>8}{'CPU':>8}   wall / asyncssh's (round by round)")
    figures = {}
    for count in args.hosts:
        hosts = LiteHosts(count)
        try:
            figures[count] = measure(hosts, tools, args.rounds)
        finally:
            hosts.close()
        show(count, figures[count])
    few, many = min(figures), max(figures)
    if few < many and "podrun" in tools:
        wall, cpu = (figures[many]["podrun"][k] / figures[few]["podrun"][k] for k in (2, 3))
        print(f"\npodrun, {few} -> {many} hosts ({many / few:.0f} times): wall {wall:.1f} times, CPU {cpu:.1f} times")


def measure(hosts: LiteHosts, tools: list[str], rounds: int) -> dict[str, list[float]]:
    """Return medians by tool: connect, again, both, CPU, wall as a ratio to asyncssh's in the same round (nan without it)."""
    runs: dict[str, list[list[float]]] = {tool: [] for tool in tools}
    for turn in range(rounds):
        for tool in tools[turn % len(tools) :] + tools[: turn % len(tools)]:
            runs[tool].append(in_a_process(hosts, tool))
    yardstick = [row[2] for row in runs.get("asyncssh", [[math.nan] * 4] * rounds)]
    for rows in runs.values():
        for row, wall in zip(rows, yardstick, strict=True):
            row.append(row[2] / wall)
    return {tool: [statistics.median(column) for column in zip(*rows, strict=True)] for tool, rows in runs.items()}


def in_a_process(hosts: LiteHosts, tool: str) -> list[float]:
    command = [sys.executable, __file__, "--run", tool, str(hosts.key), str(hosts.known_hosts), *hosts.addresses]
    done = hosts.run(command, timeout=300)
    if done.returncode:
        raise SystemExit(f"{tool} failed:\n{done.stderr[-2000:]}")
    connect, again, cpu = json.loads(done.stdout.splitlines()[-1])
    return [connect, again, connect + again, cpu]


def show(count: int, figures: dict[str, list[float]]) -> None:
    for tool, (connect, again, wall, cpu, ratio) in figures.items():
        print(f"{count:>5}  {tool:<16}{connect:>8.2f}{again:>8.2f}{wall:>8.2f}{cpu:>8.2f}{ratio:>10.2f}", flush=True)


def is_there(tool: str) -> bool:
    if tool == "asyncssh":
        return find_spec("asyncssh") is not None
    return tool == "podrun" or shutil.which(tool.split()[0]) is not None


Answer = tuple[float, float, float]
"""Seconds for the first command, seconds for the second one, CPU seconds."""


def run_podrun(key: str, known_hosts: str, addresses: list[str]) -> Answer:
    from podrun.launcher.pod.fan_out import fan_out
    from podrun.launcher.pod.pod import Host, Pod, Ssh
    from podrun.launcher.pod.slices import parse_slice
    from podrun.launcher.transport.ssh.transport import SshTransport

    ssh = Ssh(user="root", key=Path(key), known_hosts=Path(known_hosts))
    hosts = [Host(address, address) for address in addresses]
    transport = SshTransport(Pod(parse_slice("cpu-1x1"), tuple(hosts), transport="ssh", platform="cpu", ssh=ssh))

    def true(host: Host) -> int | None:
        channel = transport.open(host, ["true"])
        channel.finish()
        channel.receive()
        return channel.exit_code()

    def once() -> None:
        answers = fan_out(true, hosts)
        if answers != [0] * len(hosts):
            raise SystemExit(f"podrun: {next(a for a in answers if a != 0)!r}")

    answer = timed(once)
    transport.close()
    return answer


def run_asyncssh(key: str, known_hosts: str, addresses: list[str]) -> Answer:
    import asyncio

    import asyncssh

    options = {"username": "root", "client_keys": [asyncssh.read_private_key(key)], "config": None, "agent_path": None}
    known = asyncssh.read_known_hosts(known_hosts)
    connections: dict[str, asyncssh.SSHClientConnection] = {}

    async def true(address: str, window: asyncio.Semaphore) -> None:
        async with window:
            if address not in connections:
                connections[address] = await asyncssh.connect(address, known_hosts=known, **options)
            await connections[address].run("true", check=True)

    async def once() -> None:
        window = asyncio.Semaphore(WINDOW)
        await asyncio.gather(*(true(address, window) for address in addresses))

    loop = asyncio.new_event_loop()
    return timed(lambda: loop.run_until_complete(once()))


def ssh_options(key: str, known_hosts: str, kex: str | None) -> list[str]:
    options = ["-F", "none", "-l", "root", "-i", key, "-o", f"UserKnownHostsFile={known_hosts}", "-o", "BatchMode=yes"]
    return [*options, "-o", f"KexAlgorithms={kex}"] if kex else options


def run_ssh(key: str, known_hosts: str, addresses: list[str]) -> Answer:
    from podrun.launcher.pod.fan_out import fan_out

    options = ssh_options(key, known_hosts, CURVE)

    def true(address: str) -> int:
        return subprocess.run(["ssh", *options, address, "true"], stdin=subprocess.DEVNULL).returncode

    def once() -> None:
        if any(fan_out(true, addresses)):
            raise SystemExit("ssh failed")

    return timed(once)


def run_pdsh(key: str, known_hosts: str, addresses: list[str], kex: str | None = None) -> Answer:
    options = " ".join(ssh_options(key, known_hosts, kex))
    env = {**os.environ, "PDSH_SSH_ARGS": f"{options} %h", "PDSH_SSH_ARGS_APPEND": ""}
    command = ["pdsh", "-S", "-R", "ssh", "-f", str(WINDOW), "-w", ",".join(addresses), "true"]
    return timed(lambda: subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL))


def timed(once: Callable[[], object]) -> Answer:
    marks = [time.perf_counter()]
    before = cpu_seconds()
    for _ in range(2):
        once()
        marks.append(time.perf_counter())
    return marks[1] - marks[0], marks[2] - marks[1], cpu_seconds() - before


def cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


TOOLS: dict[str, Callable[[str, str, list[str]], Answer]] = {
    "podrun": run_podrun,
    "asyncssh": run_asyncssh,
    "pdsh": run_pdsh,
    "pdsh curve25519": lambda *args: run_pdsh(*args, kex=CURVE),
    "ssh curve25519": run_ssh,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        tool, key, known_hosts, *addresses = sys.argv[2:]
        print(json.dumps(TOOLS[tool](key, known_hosts, addresses)))
    else:
        main()

"""Time data that is brought to many hosts against rsync to each of them, and what a transfer after an interruption sends.

    python benchmarks/bring.py [--hosts 16] [--megabytes 100] [--rounds 3]

The hosts are network namespaces of this machine with an sshd and a home each. rsync runs for all hosts at once, over the same
sshd; podrun and rsync take turns, on new data each time, and the agent is on the hosts beforehand, as rsync is. Hosts share
this machine's cores, so the ratio tells the work that each way takes, encryption above all, and not what N networks of their
own would make of it, where rsync sends N copies through one cable and podrun one. Their homes are in memory, as one disk
would be shared as well: podrun waits until it is on the disk, rsync does not. Needs root, Debian's `openssh-server iproute2
iptables rsync`, and twice N times the data in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setting import print_setting

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.hosts import Hosts, why_not

FILES = 4
LIMIT = 600.0  # seconds for one transfer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print_setting()
    if reason := why_not() or (None if shutil.which("rsync") else "rsync is missing"):
        raise SystemExit(f"bring.py: {reason}")
    tempfile.tempdir = "/dev/shm"
    hosts = Hosts(args.hosts)
    try:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder, "data")
            data.mkdir()
            write(data, 1000)
            bring(hosts, data)  # puts the agent on the hosts
            compare(hosts, data, args.megabytes * 10**6, args.rounds)
            interrupt(hosts, data, args.megabytes * 10**6)
    finally:
        hosts.close()


def compare(hosts: Hosts, data: Path, size: int, rounds: int) -> None:
    print(f"{size / 1e6:.0f} MB in {FILES} files to {len(hosts.names)} hosts")
    print(f"{'':10}seconds{'':14}CPU seconds, both ends")
    print(
        f"{'rsync':>8}{'podrun':>8}{'ratio':>8}{'rsync':>10}{'podrun':>8}{'ratio':>8}   from the launcher, host to host"
    )
    rows = []
    for turn in range(rounds):
        write(data, size)
        taken: dict[str, tuple[float, float]] = {}
        for name in ("rsync", "podrun") if turn % 2 else ("podrun", "rsync"):
            start, before = time.perf_counter(), cpu_seconds(hosts)
            if name == "rsync":
                rsync(hosts, data)
            else:
                answer = bring(hosts, data)
            taken[name] = time.perf_counter() - start, cpu_seconds(hosts) - before
        check(hosts, data)
        row = [(taken["rsync"][n], taken["podrun"][n], taken["podrun"][n] / taken["rsync"][n]) for n in range(2)]
        rows.append(row)
        sent = f"{answer['from_launcher'] / 1e6:.0f} MB, {answer['from_hosts'] / 1e6:.0f} MB"
        (wall, wall_podrun, ratio), (cpu, cpu_podrun, cpu_ratio) = row
        print(
            f"{wall:>8.1f}{wall_podrun:>8.1f}{ratio:>8.2f}{cpu:>10.1f}{cpu_podrun:>8.1f}{cpu_ratio:>8.2f}   {sent}",
            flush=True,
        )
        clear(hosts)
    medians = [statistics.median(row[n][2] for row in rows) for n in range(2)]
    print(f"median ratio: {medians[0]:.2f} of the seconds, {medians[1]:.2f} of the CPU seconds")


def cpu_seconds(hosts: Hosts) -> float:
    """Return the CPU seconds of all commands that have ended: on this machine's side, and on the hosts, below their sshd."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for name in hosts.names:
        sshd = hosts.run_on(name, "cat", "/proc/1/stat").rpartition(")")[2].split()
        ticks += int(sshd[13]) + int(sshd[14])  # of its children that have ended, and of theirs
    return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def interrupt(hosts: Hosts, data: Path, size: int) -> None:
    """Kill the launcher when about half of the data is on the hosts, and bring it again."""
    write(data, size)
    process = subprocess.Popen(
        command(hosts, data), env=hosts.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    goal, deadline = len(hosts.names) * size / 2, time.monotonic() + LIMIT
    while process.poll() is None and on_disk(hosts) < goal and time.monotonic() < deadline:
        time.sleep(0.02)
    if process.poll() is not None:
        raise SystemExit("the transfer was over before it could be interrupted")
    process.kill()
    process.wait()
    while any("podrun_agent" in p.args for name in hosts.names for p in hosts.processes(name)):
        if time.monotonic() > deadline:
            raise SystemExit("an agent has outlived the launcher")
        time.sleep(0.1)
    present = sum(pieces_there(hosts, name, data) for name in hosts.names)
    answer = bring(hosts, data)
    check(hosts, data)
    total = len(hosts.names) * size
    sent = answer["from_launcher"] + answer["from_hosts"]
    print(
        f"interrupted with {present / 1e6:.0f} of {total / 1e6:.0f} MB on the hosts in whole pieces; the next transfer sent "
        f"{sent / 1e6:.0f} MB, {(sent + present - total) / 1e6:.1f} MB of it again; "
        f"{answer['from_launcher'] / 1e6:.0f} MB from the launcher"
    )


def write(data: Path, size: int) -> None:
    for number in range(FILES):
        (data / f"shard-{number}").write_bytes(os.urandom(size // FILES))


def rsync(hosts: Hosts, data: Path) -> None:
    shell = f"ssh -F none -i {hosts.key} -o UserKnownHostsFile={hosts.known_hosts} -o BatchMode=yes"

    def one(name: str) -> None:
        target = f"root@{hosts.address(name)}:rsynced/"
        hosts.run(["rsync", "-a", "-e", shell, f"{data}/", target], timeout=LIMIT, check=True)

    with ThreadPoolExecutor(len(hosts.names)) as pool:
        list(pool.map(one, hosts.names))


def command(hosts: Hosts, data: Path) -> list[str]:
    addresses = [hosts.address(name) for name in hosts.names]
    return [
        *hosts.prefix,
        sys.executable,
        __file__,
        "--run",
        str(hosts.key),
        str(hosts.known_hosts),
        str(data),
        *addresses,
    ]


def bring(hosts: Hosts, data: Path) -> dict[str, Any]:
    done = subprocess.run(command(hosts, data), env=hosts.env, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run_bring(key: str, known_hosts: str, data: str, *addresses: str) -> None:
    """Bring the data as a start does, reading it included, and print what was sent."""
    from podrun.launcher.pod.pod import Host, Pod, Ssh
    from podrun.launcher.pod.slices import parse_slice
    from podrun.launcher.staging.distribute_data import Received, distribute_data
    from podrun.launcher.staging.find_data import find_data
    from podrun.launcher.transport.ssh.transport import SshTransport
    from podrun.runtime.config import Config

    job = Config.model_validate(
        {"data": {"name": "text", "path": data, "bring": True}, "steps": 1, "batch_size": 1},
    )
    pod = Pod(
        parse_slice("cpu-1x1"),
        tuple(Host(address, address) for address in addresses),
        transport="ssh",
        platform="cpu",
        ssh=Ssh(user="root", key=Path(key), known_hosts=Path(known_hosts)),
        python=sys.executable,
    )
    transport = SshTransport(pod)
    answers = distribute_data(
        pod, transport, find_data(job), lambda host, text: None, lambda text: print(text, file=sys.stderr)
    )
    transport.close()
    if failed := [str(answer) for answer in answers.values() if not isinstance(answer, Received)]:
        raise SystemExit("\n".join(failed))
    brought = [answer for answer in answers.values() if isinstance(answer, Received)]
    sums = {name: sum(getattr(answer, name) for answer in brought) for name in ("from_launcher", "from_hosts")}
    print(json.dumps(sums))


# --- what is on the hosts -----------------------------------------------------------------------------------------------


def store(hosts: Hosts, name: str) -> Path:
    return hosts.home_of(name) / ".podrun" / "data"


def on_disk(hosts: Hosts) -> int:
    """Return the bytes that have been written to unfinished files on all hosts."""
    parts = (path for name in hosts.names for path in (store(hosts, name) / "files").glob("*.part"))
    return sum(path.stat().st_blocks * 512 for path in parts)


def pieces_there(hosts: Hosts, name: str, data: Path) -> int:
    """Return the bytes of whole pieces that a host has, looked at from outside."""
    from podrun.launcher.agent.prepare.data_set import PIECE

    total = 0
    for path in data.iterdir():
        content = path.read_bytes()
        files = store(hosts, name) / "files"
        digest = hashlib.sha256(content).hexdigest()
        held = next((p.read_bytes() for p in (files / digest, files / f"{digest}.part") if p.exists()), b"")
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            total += len(piece) * (held[start : start + PIECE] == piece)
    return total


def check(hosts: Hosts, data: Path) -> None:
    """End unless every host has the data."""
    wanted = {hashlib.sha256(path.read_bytes()).hexdigest() for path in data.iterdir()}
    for name in hosts.names:
        digests = {hashlib.sha256((store(hosts, name) / "files" / d).read_bytes()).hexdigest() for d in wanted}
        if digests != wanted:
            raise SystemExit(f"{name} has other data")


def clear(hosts: Hosts) -> None:
    for name in hosts.names:
        for folder in (store(hosts, name), hosts.home_of(name) / "rsynced"):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run_bring(*sys.argv[2:])
    else:
        main()

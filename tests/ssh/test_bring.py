"""Data that is on the launcher's machine alone, and a job on hosts that are other machines."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from ..hosts import wait_until
from .pod import PodSandbox
from .results import events_of


def notes(pod: PodSandbox) -> list[str]:
    return [event["message"] for event in events_of(pod) if event["event"] == "note"]


def stores(pod: PodSandbox) -> list[Path]:
    return [pod.hosts.home_of(name) / ".podrun" / "data" for name in pod.hosts.names]  # type: ignore[union-attr]


def agents(pod: PodSandbox) -> list[str]:
    """Return the command lines of agents on all hosts."""
    processes = [p for name in pod.hosts.names for p in pod.hosts.processes(name)]  # type: ignore[union-attr]
    return [process.args for process in processes if "podrun_agent" in process.args]


@pytest.mark.long
def test_a_job_whose_data_is_here_alone(pod: PodSandbox) -> None:
    """It is brought once, from host to host but for the first; the next start finds it there."""
    hosts = pod.hosts.names[:3]
    job = (pod.write_pod(hosts), "train.yaml", "data.bring=true", "batch_size=6", "steps=1")
    size = (pod.path / "text.txt").stat().st_size
    dry = pod.podrun("--dry-run", *job)
    assert "brings  data.path: 1 file" in dry.stdout and "/text.txt to ~/.podrun/data/sets/" in dry.stdout
    done = pod.podrun(*job)
    assert done.returncode == 0, done.stderr
    assert [note for note in notes(pod) if note.startswith(f"data brought to {len(hosts)} of {len(hosts)} hosts in ")]
    again = pod.run(*job)
    again.wait_for(lambda e: e["event"] == "note" and e["message"].startswith("the data is on all hosts already"))
    again.process.send_signal(signal.SIGINT)
    assert again.end() == 130, again.stderr
    for store in stores(pod)[: len(hosts)]:
        [file] = (store / "files").iterdir()
        assert file.stat().st_size == size
        shutil.rmtree(store)


@pytest.mark.long
def test_hosts_that_cannot_reach_each_other(pod: PodSandbox) -> None:
    """A firewall between them: they say whom they cannot reach, and the launcher sends to each."""
    hosts = pod.hosts.names
    option = pod.write_pod(hosts, ports=[41000, 41001])
    for name in hosts[1:]:
        for port in (41000, 41001):
            pod.hosts.block(hosts[0], port, source=pod.hosts.address(name), how="REJECT")  # type: ignore[union-attr]
    done = pod.podrun(option, "train.yaml", "data.bring=true")
    assert done.returncode != 0  # nor can they reach the coordinator
    size = (pod.path / "text.txt").stat().st_size
    assert [n for n in notes(pod) if "h1: cannot get data from h0 at " in n and "Connection refused" in n], notes(pod)
    for store in stores(pod):
        assert [file.stat().st_size for file in (store / "files").iterdir()] == [size]
        shutil.rmtree(store)


@pytest.mark.long
def test_ctrl_c_in_the_middle(pod: PodSandbox) -> None:
    """Nothing is left running, and a file that has its name is whole."""
    option = pod.write_pod(pod.hosts.names)
    (pod.path / "text.txt").write_bytes(b"some text, again and again\n" * 2_000_000)
    run = pod.run(option, "train.yaml", "data.bring=true", "steps=1")
    wait_until(lambda: any(list(s.glob("files/*")) for s in stores(pod)), "data on a host", 120)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(120) == 130
    wait_until(lambda: not agents(pod), "agents to end", 60)
    for store in stores(pod):
        whole = [file for file in (store / "files").glob("*") if file.suffix != ".part"]
        assert all(file.stat().st_size == (pod.path / "text.txt").stat().st_size for file in whole)
        shutil.rmtree(store, ignore_errors=True)

"""Programs that were compiled on the launcher's machine travel to the hosts with the code, and are loaded there."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from .pod import PodSandbox
from .results import events_of, log_of, newest

NAMES = ["h0", "h1"]
BIG = ("jit(_fun)", "jit(jaxpr_as_fun)")
"""The step and the evaluation of pmap, and the initial state, in JAX's log of what it compiles."""


def trained(pod: PodSandbox, workdir: str) -> list[str]:
    """Train on hosts that have compiled nothing yet. Returns which large programs were compiled on them."""
    cache = f"{pod.hosts.home_inside()}/cache-{secrets.token_hex(4)}"
    env = {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_LOG_COMPILES": "1"}
    option = pod.write_pod(NAMES, workdir=str(pod.path / "shared" / workdir), env=env)
    done = pod.podrun(option, "small.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for name in NAMES for line in log_of(newest(pod), name) if "Finished XLA compilation" in line]
    return [name for name in BIG if any(name in line for line in lines)]


def notes(pod: PodSandbox) -> list[str]:
    return [event["message"] for event in events_of(pod) if event["event"] == "note"]


def kinds_sent(pod: PodSandbox) -> list[list[str]]:
    """Return the kinds of the bundles that each host got in the last run."""
    (sent,) = [event["sent"] for event in events_of(pod) if "sent" in event and event["event"] != "usage"]
    return [[name.partition("-")[0] for name in names] for names in sent.values()]


def losses(pod: PodSandbox, workdir: str) -> dict[int, float]:
    return pod.losses(f"shared/{workdir}/small")


def stored(pod: PodSandbox) -> Path:
    (path,) = (pod.path / "home" / "programs").glob("*.json")
    return path


@pytest.mark.long
def test_programs_are_sent_with_the_code(pod: PodSandbox) -> None:
    """The hosts compile neither the initial state nor step nor evaluation, and the losses are the same bit for bit.

    Programs of another version: the hosts say so and compile. Damaged ones are not sent, and the launcher says so.
    """
    done = pod.podrun("compile", "small.yaml", pod.write_pod(NAMES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "small.yaml for cpu-2x1: 4 of 4 compiled" in done.stdout
    assert trained(pod, "sent") == []
    assert all("programs" in kinds for kinds in kinds_sent(pod))
    assert sum(note.startswith("the step was compiled before the start") for note in notes(pod)) == 1
    host = pod.hosts.home_of("h1", "root") / ".podrun" / "bundles"
    (programs,) = [path for path in host.glob("programs-*") if any(path.glob(f"{stored(pod).name}"))]
    assert {oct(path.stat().st_mode & 0o777) for path in [programs, *programs.rglob("*")]} == {"0o700", "0o600"}

    whole = json.loads(stored(pod).read_text())
    keys = [program["key"] for program in whole["programs"]]
    other = [{**program, "key": key[::-1]} for program, key in zip(whole["programs"], keys, strict=True)]
    compiled = stored(pod).parent / "compiled"
    for key in keys:
        (compiled / key).rename(compiled / key[::-1])
    stored(pod).write_text(
        json.dumps({**whole, "built_for": {**whole["built_for"], "jax": "0.9.9"}, "programs": other})
    )
    assert trained(pod, "older") == list(BIG)
    why = [note for note in notes(pod) if "compiled before the start" in note]
    assert len(why) == 1 and why[0].startswith(
        "what was compiled before the start is not used: it was compiled with JAX 0.9.9, and "
    )
    assert losses(pod, "sent") == losses(pod, "older")

    (compiled / keys[0][::-1]).write_bytes(b"damaged")
    done = pod.podrun(pod.write_pod(NAMES), "small.yaml", "--workdir", str(pod.path / "shared" / "damaged"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "podrun: the compiled programs are not sent to the hosts: " in done.stderr
    assert " is damaged; `podrun compile` makes them again" in done.stderr
    assert not any("programs" in kinds for kinds in kinds_sent(pod))

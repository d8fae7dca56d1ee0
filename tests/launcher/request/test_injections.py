"""Injected faults beside the pod: which process is meant, and what is wrong."""

from __future__ import annotations

import pytest

from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.injections import resolve_injections
from podrun.runtime.contract import UserError

POD = Pod(parse_slice("cpu-2x2"), (Host("host-0", "host-0"), Host("host-1", "host-1")), "local", "cpu")


@pytest.mark.parametrize(
    ("text", "process_per", "full"),
    [
        ("kill", "host", "kill:host=host-0,process=0@step=1"),
        ("kill:host=1", "host", "kill:host=host-1,process=1@step=1"),
        ("kill:host=host-1", "device", "kill:host=host-1,process=2@step=1"),
        ("hang:process=3@step=4", "device", "hang:host=host-1,process=3@step=4"),
        ("link_down:host=1", "device", "link_down:host=host-1,process=2,seconds=5@step=1"),
    ],
)
def test_host_and_process_are_filled_in(text: str, process_per: str, full: str) -> None:
    assert resolve_injections([text], POD, process_per, False) == (full,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kill:host=2", "there is no host 2; allowed: 0 to 1"),
        ("kill:process=4", "there is no process 4; allowed: 0 to 3"),
        ("kill:host=0,process=3", "process 3 is on host-1, not on host-0"),
        ("link_down:process=1", "a link belongs to a host; write host=0"),
    ],
)
def test_targets_that_are_not_in_the_pod(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        resolve_injections([text], POD, "device", False)


def test_all_mistakes_of_all_faults_are_told() -> None:
    with pytest.raises(UserError) as raised:
        resolve_injections(["nan", "kill:host=5", "kil", "stop", "stop:process=0"], POD, "host", True)
    rows = str(raised.value).splitlines()
    assert len(rows) == 4
    assert all(row.startswith("--inject '") for row in rows)
    for kind in ("bitflip", "wrong_sum"):
        with pytest.raises(UserError, match=f"a state of its own; {kind} is for a train.yaml"):
            resolve_injections([kind], POD, "host", True)
    assert "a user program" in rows[0] and "given twice" in rows[3]


def test_a_fault_is_checked_without_a_pod() -> None:
    """The pod has a mistake of its own, which is told as well."""
    with pytest.raises(UserError, match="unknown kind"):
        resolve_injections(["kil"], None, "host", False)

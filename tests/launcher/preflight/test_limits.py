"""The limits of what is a finding: versions to the patch, clocks, and workdirs that are no folders."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.pod.pod import Pod
from podrun.launcher.preflight import run_preflight as module
from podrun.launcher.preflight.rules import apply_rules
from podrun.launcher.preflight.run_preflight import run_preflight
from podrun.launcher.preflight.versions import NEEDED, numbers
from podrun.launcher.transport.local import LocalTransport

from .pods import PKG, changed


def about(key: str, slice: str, changes: dict[str, dict[str, Any]]) -> list[tuple[tuple[str, ...], str]]:
    pod, facts = changed(slice, changes)
    return [
        (tuple(f.hosts), f.what) for f in apply_rules(pod, facts, program=False, before_setup=False) if f.about == key
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.2.8", (0, 2, 8)), ("0.10.2.dev1", (0, 10, 2)), ("1.0rc1", (1, 0)), ("3", (3,)), ("1.2.3+cu12", (1, 2, 3))],
)
def test_versions_are_numbers(version: str, expected: tuple[int, ...]) -> None:
    """All of them: the patch version counts."""
    assert numbers(version) == expected


@pytest.mark.parametrize("name", NEEDED)
def test_a_patch_version_may_be_too_old(name: str) -> None:
    """The one that is needed is enough, and the one before it is not."""
    *start, last = numbers(NEEDED[name])
    older = ".".join(
        map(str, [*start, last - 1] if last else [start[0], max(0, start[1] - 1), 99] if len(start) > 1 else [0, 99])
    )
    assert not [
        what for _, what in about("packages", "cpu-1x1", {"a": {PKG + name: NEEDED[name]}}) if "too old" in what
    ]
    assert [what for _, what in about("packages", "cpu-1x1", {"a": {PKG + name: older}}) if f"{name} {older}" in what]


@pytest.mark.parametrize(
    ("skews", "uncertain", "expected"),
    [
        # With two hosts the one nearer to this machine is believed, for there is no majority.
        ([0.0, 5.0], 0.0, [(("b",), "its clock is 5.0 s ahead")]),
        ([-5.0, 0.0], 0.0, [(("a",), "its clock is 5.0 s behind")]),
        (
            [5.0, 5.0, 0.0],
            0.0,
            [(("c",), "its clock is 5.0 s behind"), (("a", "b"), "its clock is 5.0 s ahead of this machine's")],
        ),
        ([5.0, 5.0], 0.0, [(("a", "b"), "its clock is 5.0 s ahead of this machine's")]),
        ([5.0, 5.0], 4.9, []),
        ([0.0, 5.0], 4.9, []),
    ],
)
def test_clocks(skews: list[float], uncertain: float, expected: list[tuple[tuple[str, ...], str]]) -> None:
    """Compared with most hosts; what a slow connection may explain is no finding."""
    changes = {"abc"[i]: {"clock/skew": skew, "clock/uncertain": uncertain} for i, skew in enumerate(skews)}
    assert about("clock", f"cpu-{len(skews)}x1", changes) == expected


def test_our_clock_is_judged_by_the_surest_host() -> None:
    """One fast connection is enough to know it."""
    changes = {"a": {"clock/skew": 5.0, "clock/uncertain": 4.9}, "b": {"clock/skew": 5.0, "clock/uncertain": 0.0}}
    assert len(about("clock", "cpu-2x1", changes)) == 1


@pytest.mark.parametrize(("workdir", "tried"), [("gs://bucket/x", []), ("/shared/x", ["/shared/x"])])
def test_a_bucket_is_not_tried_as_a_folder(
    local: tuple[LocalTransport, Pod], monkeypatch: pytest.MonkeyPatch, workdir: str | None, tried: list[str]
) -> None:
    """It would be made as a folder `gs:`, or fail."""
    seen: list[str] = []
    monkeypatch.setattr(module, "_try_coordinator", lambda report, transport, say: None)
    monkeypatch.setattr(module, "_try_workdir", lambda report, transport, folder, say: seen.append(folder))
    run_preflight(*local, workdir, lambda *news: None)
    assert seen == tried

"""Names of files that the user may have meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.yamlfile.near import near_files
from podrun.launcher.yamlfile.yaml_file import parse


@pytest.mark.parametrize(
    ("beside", "meant"),
    [
        (["train.yaml"], ["train.yaml"]),
        (["train.yaml", "small.yaml"], ["train.yaml"]),  # which is like it in nothing but its suffix
        (["train.yml"], ["train.yml"]),
        (["train.yaml", "trial.yaml"], ["trial.yaml", "train.yaml"]),
        (["train.py", "trian.txt", "other.yaml"], []),
        ([], []),
    ],
)
def test_near_files(tmp_path: Path, beside: list[str], meant: list[str]) -> None:
    """YAML files with a name like that of the missing one, the nearest first."""
    for name in beside:
        (tmp_path / name).touch()
    names = [str(tmp_path / name) for name in meant]
    assert near_files(tmp_path / "trian.yaml") == (f"did you mean {' or '.join(names)}?" if names else None)


def test_lines_of_what_is_in_lists() -> None:
    """Each item has the line that it begins in, and what is in it has its own."""
    _, lines = parse("a:\n  - x: 1\n    y: 2\n  - z\nb: [1,\n  2]\n")
    assert lines == {"a": 1, "a.0": 2, "a.0.x": 2, "a.0.y": 3, "a.1": 4, "b": 5, "b.0": 5, "b.1": 6}


def test_no_such_directory(tmp_path: Path) -> None:
    """There is nothing beside it."""
    assert near_files(tmp_path / "nowhere" / "train.yaml") is None

"""Which file the user may have meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.yamlfile.near import near_files


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


def test_no_such_directory(tmp_path: Path) -> None:
    """There is nothing beside it."""
    assert near_files(tmp_path / "nowhere" / "train.yaml") is None

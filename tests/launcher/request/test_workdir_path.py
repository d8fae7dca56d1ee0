"""A workdir on this machine has one name, however it was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.request.request import Request, make_spec


def workdir_of(typed: str) -> Path:
    return make_spec(
        Request(
            None, program=("true",), where=PodRequest("cpu-2x1", inventories={"simulate": True}), workdir=Path(typed)
        )
    ).workdir


def test_a_way_up_is_not_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is resolved as the file system does, through links; names without a way up stay as they were typed."""
    real = tmp_path.resolve()
    (real / "sub").mkdir()
    (real / "far" / "away").mkdir(parents=True)
    (real / "link").symlink_to("far/away")
    monkeypatch.chdir(real)
    assert workdir_of("sub/../rel") == real / "rel"
    assert workdir_of("link/../rel") == real / "far" / "rel"
    assert workdir_of("link/rel") == real / "link" / "rel"

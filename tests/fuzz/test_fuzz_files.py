"""A host says anything where files are fetched: it is refused in one line, and nothing is written outside the folder."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote.download import FileFailedError, RemoteFolder
from podrun.launcher.results.folder import DownloadFolder
from podrun.launcher.results.selection import Selection
from podrun.launcher.results.transfer import Downloaded, Transfer
from podrun.runtime.contract import UserError
from podrun.runtime.safe_name import as_files

from .cases import NUMBERS, damaged, fuzz, raw_lines
from .lying_hosts import LyingTransport

POD = Pod(parse_slice("cpu-1x1"), (Host("host-1", "b"),), "ssh", "cpu")
PATHS = [
    "metrics.jsonl",
    "checkpoints/3/podrun-manifest.json",
    "checkpoints/3/x",
    "../y",
    "/y",
    "a/../../y",
    "metrics.jsonl/x",
]
MANIFEST = json.dumps({"files": {"x": [1, ""], "../../y": [1, ""]}})
FRAMES: list[dict[str, Any]] = [
    {"type": "folder", "path": "/w", "run": None},
    {"type": "listed", "left_out": 0},
    *({"type": "file", "path": path, "size": size} for path in PATHS for size in (0, 1, 1 << 50)),
    *({"type": "sending", "offset": offset, "size": size} for offset, size in ((0, 0), (0, 1), (0, 1 << 50), (1, 1))),
    {"type": "sending", "offset": 0, "size": len(MANIFEST)},
    *({"type": "data", "size": size} for size in (1, len(MANIFEST), 1 << 40)),
    {"type": "sent", "digest": ""},
    {"type": "failed", "error": "no", "gone": True},
    {"type": "failed", "error": "no", "gone": False},
]
frames = st.sampled_from(FRAMES)
lines = st.one_of(
    frames.map(lambda frame: json.dumps(frame).encode()), damaged(frames), raw_lines, st.just(MANIFEST.encode())
)
opening = [json.dumps(frame).encode() for frame in (FRAMES[0], FRAMES[2])]
scripts = st.tuples(st.booleans(), st.lists(lines, max_size=14)).map(
    lambda drawn: b"\n".join([*(opening if drawn[0] else []), *drawn[1], b""])
)


@pytest.mark.parametrize("number", NUMBERS)
def test_files_of_a_host(number: int) -> None:
    def check(script: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            reason = ""
            home = DownloadFolder(Path(folder, "home"), "host-1:/w")
            try:
                transport = LyingTransport("nobody", (), [script])
                remote = RemoteFolder(transport, POD, POD.hosts[0], "/w")
                listing = remote.list_files()
                assert not as_files(listing.sizes)[1]
                Transfer(remote, "host-1", home, Downloaded(), lambda _: None, lambda *_: None).run(
                    listing, Selection()
                )
            except (HostError, FileFailedError, UserError, OSError) as error:
                reason = str(error)
            finally:
                home.close()
            assert "\n" not in reason
            assert [path.name for path in Path(folder).iterdir()] == ["home"]

    fuzz(scripts, check, number)

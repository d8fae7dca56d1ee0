"""Writes what looks like a workdir with two complete checkpoints, on the disk of process 0 alone."""

import hashlib
import json
import os
from pathlib import Path

MEGABYTES = 150

if os.environ["PODRUN_PROCESS_ID"] == "0":
    workdir = Path(os.environ["PODRUN_WORKDIR"])
    for step in (10, 20):
        folder = workdir / "checkpoints" / str(step)
        (folder / "state").mkdir(parents=True)
        sha = hashlib.sha256()
        with (folder / "state" / "data").open("wb") as file:
            for _ in range(MEGABYTES if step == 20 else 1):
                data = os.urandom(1 << 20)
                sha.update(data)
                file.write(data)
        size = (folder / "state" / "data").stat().st_size
        manifest = {"algorithm": "sha256", "files": {"state/data": [size, sha.hexdigest()]}}
        (folder / "podrun-manifest.json").write_text(json.dumps(manifest))
    (workdir / "metrics.jsonl").write_text('{"step": 10}\n{"step": 20}\n')

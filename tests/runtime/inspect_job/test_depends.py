"""The files that an answer about a job depends on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CODE = """
import json
from podrun.runtime.inspect_job.depends import recorded
depends_on = recorded()
import mine
print(json.dumps(depends_on()))
"""


def test_own_code_and_what_it_reads_but_no_bytecode(tmp_path: Path) -> None:
    """Bytecode is written when code is imported for the first time, so it is newer than the question."""
    (tmp_path / "mine.py").write_text("import other; text = open('sizes.json').read()")
    (tmp_path / "other.py").write_text("import json")
    (tmp_path / "sizes.json").write_text("{}")
    env = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CODE], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        files = [Path(path) for path in json.loads(done.stdout) if Path(path).is_file()]
        assert {file.name for file in files if file.parent == tmp_path} == {"mine.py", "other.py", "sizes.json"}
        assert not any(file.suffix == ".pyc" for file in files)
    assert list(tmp_path.glob("__pycache__/mine.*.pyc"))

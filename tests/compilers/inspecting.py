"""`podrun inspect` of a small GPT-2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOB = """
task: language_model
steps: 3
batch_size: 64
data: {name: text, path: text.txt, tokenizer: byte}
model: {name: gpt2, layers: 2, width: 256, heads: 4, context: 256}
precision: bfloat16
"""


def inspect(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if not (folder / "train.yaml").exists():
        (folder / "train.yaml").write_text(JOB)
        (folder / "text.txt").write_text("one green bottle hanging on the wall\n" * 100)
    env = {**os.environ, "PODRUN_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "podrun.launcher.cli", "inspect", "train.yaml", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)

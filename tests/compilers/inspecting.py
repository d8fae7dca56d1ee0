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
model: {name: gpt2, layers: 1, width: 128, heads: 2, context: 64, attention: xla}
precision: bfloat16
"""


def inspect(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    if not (folder / "train.yaml").exists():
        (folder / "train.yaml").write_text(JOB)
        data = folder / "text.txt"
        data.write_text("one green bottle hanging on the wall\n" * 100)
        os.utime(data, (1e9, 1e9))  # an answer that depends on a file of this moment is not kept
    env = {**os.environ, "PODRUN_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "podrun.launcher.cli", "inspect", "train.yaml", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)

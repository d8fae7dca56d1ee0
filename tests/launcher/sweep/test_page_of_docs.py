"""docs/sweeps.md: its sweep.yaml is one, and it names each key."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from podrun.launcher.sweep.sweep_file import SweepFile

PAGE = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text()


def test_each_yaml_of_the_page_is_a_sweep() -> None:
    texts = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert texts and all(SweepFile.model_validate(yaml.safe_load(text)) for text in texts)


def test_the_page_names_each_key() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [*SweepFile.model_fields]

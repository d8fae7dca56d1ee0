"""JAX and flax are bound as pairs: setup.cfg, docs/versions.md and what is installed here agree."""

from __future__ import annotations

import configparser
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PAIR = ("jax", "jaxlib", "flax")
HERE = f"3.{sys.version_info.minor}"
WORKS = [("0.10.0", "0.12.1"), ("0.10.2", "0.12.8"), ("0.11.1", "0.12.9"), ("0.12.0.1", "0.12.12")]
FAILS = [
    ("0.10.2", "0.12.0"),
    ("0.10.2", "0.12.9"),
    ("0.11.1", "0.12.8"),
    ("0.12.0.1", "0.12.8"),
    ("0.12.0.1", "0.12.0"),
]
"""Versions of jax and flax that were imported, and pairs that cannot be."""


def bounds(python: str) -> dict[str, SpecifierSet]:
    """Return the versions that setup.cfg allows for a Python such as 3.12."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = [line for line in config["options"]["install_requires"].splitlines() if line and not line.startswith("#")]
    needed = [Requirement(line) for line in lines]
    chosen = [r for r in needed if r.name in PAIR and (not r.marker or r.marker.evaluate({"python_version": python}))]
    assert sorted(r.name for r in chosen) == sorted(PAIR), f"not one line each for Python {python}: {chosen}"
    return {r.name: r.specifier for r in chosen}


def table() -> dict[str, tuple[SpecifierSet, SpecifierSet]]:
    """Return jax and flax by Python, as docs/versions.md has them."""
    text = (ROOT / "docs" / "versions.md").read_text()
    rows = re.findall(r"^\| (3\.\d+) \| ([^|]+) \| ([^|]+) \|", text, re.MULTILINE)
    return {python: (SpecifierSet(jax), SpecifierSet(flax)) for python, jax, flax in rows}


def test_the_page_says_what_setup_cfg_says() -> None:
    assert [*table()] == ["3.11", "3.12", "3.13", "3.14"]
    for python, (jax, flax) in table().items():
        assert bounds(python) == {"jax": jax, "jaxlib": jax, "flax": flax}


def test_what_is_installed_here_is_one_of_the_pairs() -> None:
    for name, allowed in bounds(HERE).items():
        assert version(name) in allowed


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_no_pair_that_fails_can_be_installed(python: str) -> None:
    allowed = bounds(python)
    assert not [(jax, flax) for jax, flax in FAILS if jax in allowed["jax"] and flax in allowed["flax"]]
    assert len([(jax, flax) for jax, flax in WORKS if jax in allowed["jax"] and flax in allowed["flax"]]) == 2

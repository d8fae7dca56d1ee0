"""Packages: the folders `launcher` and `runtime` install as `podrun.launcher` and `podrun.runtime`.

`podrun` itself is a namespace: a top-level package called `runtime` would shadow, or be shadowed by, a user's own folder.
Everything else is in setup.cfg.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        f"podrun.{name}"
        for root in ("launcher", "runtime")
        for name in (root, *(f"{root}.{sub}" for sub in find_packages(root)))
    ],
    package_dir={"podrun.launcher": "launcher", "podrun.runtime": "runtime"},
)

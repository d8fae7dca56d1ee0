"""Packages: the folder `api` installs as `podrun`, and `launcher` and `runtime` as its subpackages.

None of the folders is called `podrun`, and `runtime` is not installed as `runtime`: a top-level package of that name would
shadow, or be shadowed by, a user's own folder. Everything else is in setup.cfg.
"""

from setuptools import find_packages, setup

setup(
    packages=[
        "podrun",
        *(
            f"podrun.{name}"
            for root in ("launcher", "runtime")
            for name in (root, *(f"{root}.{sub}" for sub in find_packages(root)))
        ),
    ],
    package_dir={"podrun": "api", "podrun.launcher": "launcher", "podrun.runtime": "runtime"},
)

"""A container engine and an image for tests: the real apptainer where it is installed, else one that stands in for it.

`STAND_IN=1` takes the latter in any case.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

_STAND_IN = Path(__file__).with_name("apptainer")
PYTHON = "/opt/image/bin/python"


@dataclass(frozen=True)
class Image:
    """An image that has nothing of its own but a file and two variables: its programs are mounted from this machine."""

    path: Path
    engine: str
    """Folder of the engine's program."""

    @property
    def mounts(self) -> list[str]:
        """The system's programs, and the interpreter of the tests as `PYTHON`."""
        interpreter = Path(sysconfig.get_config_var("prefix"))
        system = [] if interpreter == Path("/usr") else [f"{interpreter}:{interpreter}:ro"]
        return ["/usr:/usr:ro", f"{sys.prefix}:/opt/image:ro", *system]


def make_image(path: Path) -> Image:
    """Make an image in a folder, as `apptainer build --sandbox` does."""
    for name in (
        "usr",
        "etc",
        "proc",
        "sys",
        "dev",
        "tmp",
        "var/tmp",
        "root",
        "home",
        "opt/image",
        ".singularity.d/env",
    ):
        (path / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (path / name).symlink_to(f"usr/{name}")
    (path / "etc/image").write_text("of the image\n")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", path / "etc")
    (path / ".singularity.d/env/90-environment.sh").write_text(
        "export OF_IMAGE=image OF_BOTH=image\nexport PATH=/usr/bin:/bin\n"
    )
    (path / ".singularity.d/env/99-base.sh").touch()  # the caller's variables come after this
    real = None if os.environ.get("STAND_IN") else shutil.which("apptainer")
    return Image(path, os.path.dirname(real) if real else str(_STAND_IN.parent))

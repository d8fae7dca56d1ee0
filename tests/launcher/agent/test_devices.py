"""Accelerators of a host: how many there are, and who has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podrun.launcher.agent.host import devices
from podrun.launcher.agent.prepare import facts

from .child import OPEN, process


@pytest.fixture
def fake_devices(tmp_path: Path) -> Path:
    """A folder like /dev, with what is no accelerator besides."""
    (tmp_path / "vfio").mkdir()
    for name in ("accel0", "accel1", "accel10", "vfio/7", "vfio/vfio", "nvidia0", "nvidiactl", "nvidia-uvm", "tty0"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    return tmp_path


def test_device_files_are_counted(fake_devices: Path) -> None:
    found = devices.device_nodes(str(fake_devices))
    names = {kind: [os.path.relpath(path, fake_devices) for path in paths] for kind, paths in found.items()}
    assert names == {"accel": ["accel0", "accel1", "accel10"], "vfio": ["vfio/7"], "nvidia": ["nvidia0"]}


MAP = (
    "import sys, time, mmap, os; fd = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(fd, 4096); os.close(fd);"
    "[os.close(n) for n in range(3, 20) if os.path.exists(f'/proc/self/fd/{n}')];"
    "print(1, end='', flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("code", [OPEN, MAP], ids=["open", "mapped"])
def test_who_has_a_device_is_named(code: str, fake_devices: Path) -> None:
    before = time.time()
    with process(code, str(fake_devices / "accel1")) as child:
        found = facts.gather({"python": sys.executable}, devices=str(fake_devices))
        (holder,) = found["holders"]["processes"]
        assert holder["pid"] == child.pid
        assert holder["files"] == [str(fake_devices / "accel1")]
        assert holder["command"].startswith(f"{sys.executable} -c import sys")
        assert abs(holder["since"] - before) < 5
    assert devices.holders([str(fake_devices / "accel1")])["processes"] == []


def test_a_run_that_has_the_host_is_named(tmp_path: Path) -> None:
    """In a network namespace of its own, where no other run can be."""
    code = (
        "from podrun.launcher.agent.host.lock import HostLock, current_holder; import sys; home = sys.argv[1];"
        "a = current_holder(home); l = HostLock(home); l.take('r-7'); print(a, current_holder(home))"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert re.fullmatch(r"None run r-7 of \S+ \(uid 0, agent pid \d+\)\n", done.stdout), done.stderr


def test_a_lock_file_is_held_or_left_over(tmp_path: Path) -> None:
    path = tmp_path / "libtpu_lockfile"
    assert devices.lock_file(str(path)) is None
    path.touch()
    left = devices.lock_file(str(path))
    assert left is not None and (left["held"], left["writable"]) == (False, True)
    with process(OPEN, str(path)):
        there = devices.lock_file(str(path))
        assert there is not None and there["held"] is True

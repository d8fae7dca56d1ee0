"""One run at a time has a host."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from .marked import Marked, line

LOCK = """
from podrun.launcher.agent.host.lock import HostLock
home = sys.argv[1]
TAKE = "import sys, time; from podrun.launcher.agent.host.lock import HostLock; lock = HostLock(sys.argv[1]);"
TAKE += "print(lock.take(sys.argv[-1]), lock.take(sys.argv[-1]), sep='|', flush=True);"

def start(run, then=""):
    return subprocess.Popen([sys.executable, "-c", TAKE + then, home, run], stdout=subprocess.PIPE, text=True)

def told(run):
    return start(run).communicate()[0].strip().split("|")

holder = start("r-1", "[(lock.drain_connections(), time.sleep(0.02)) for _ in range(3000)]")
facts = {"holder": holder.pid, "taken": holder.stdout.readline().strip().split("|")}
facts["other"] = told("r-2")
facts["same"] = told("r-1")
lock = HostLock(home)
facts["many"] = len([1 for _ in range(150) if time.sleep(0.005) or "r-1" not in lock.take("r-2")])
holder.kill()
holder.wait()
facts["after"] = told("r-2")
print(json.dumps(facts))
"""


def test_one_run_at_a_time_has_a_host(marked: Marked, tmp_path: Path) -> None:
    """Another is told who has it; agents of the same run may share a machine; death lets go of it.

    In a network namespace of its own: the lock is one per machine, and other runs may go on here.
    """
    own = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")
    if subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    facts = json.loads(line(marked.start(LOCK, str(tmp_path), before=own)) or "null")
    assert facts["taken"] == ["None", "None"]
    assert all(text.startswith("run r-1 of ") for text in facts["other"])
    assert facts["other"][0].endswith(f"agent pid {facts['holder']})")
    assert facts["same"] == ["None", "None"]
    assert facts["many"] == 0
    assert facts["after"] == ["None", "None"]

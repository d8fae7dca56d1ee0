"""Ctrl-C twice on hosts reached by SSH, and the lines that the user reads."""

from __future__ import annotations

import pytest

from ..terminal import OnTerminal
from .pod import PodSandbox


@pytest.mark.long
def test_ctrl_c_twice(pod: PodSandbox) -> None:
    """A program that prints much and ignores SIGTERM ends at once, with all that it is good to know."""
    (pod.path / "deaf.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('hears nothing', flush=True)\n"
        "while True:\n    print('a line of output', flush=True)\n    time.sleep(0.01)\n"
    )
    run = OnTerminal(pod, pod.write_pod(["h0", "h1"]), "launch.stop_grace=500", "--", "python", "deaf.py")
    try:
        run.wait_for("hears nothing")
        run.press_ctrl_c()
        run.wait_for("stopping (Ctrl-C again: at once)")
        run.press_ctrl_c()
        run.wait_for("stopping at once: no save is waited for")
        assert run.end() == 130
        assert "did not arrive" not in run.text
        last = run.text.rstrip().splitlines()[-1]
        assert last == "podrun: interrupted twice, so stopped at once; no process is left [exit code 130]"
        assert not [p for name in ("h0", "h1") for p in pod.hosts.processes(name) if "deaf.py" in p.args]
    finally:
        run.close()

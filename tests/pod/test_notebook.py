"""`podrun.launch` in a notebook: a cell trains and streams events. And a notebook's old loop on two hosts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from ..tutorial import write_files
from .conftest import processes_of

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TRAIN = """\
import podrun
run = podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, overrides={"steps": 5})
for event in run.events():
    if event["event"] == "step" and event["process"] == 0:
        print("step", event["step"], flush=True)
print(run.wait(), len(run.metrics()))
"""
LEFT = """\
left = podrun.launch("small.yaml", slice="cpu-1x1", simulate=True, workdir="left", overrides={"steps": 10_000_000})
print("left")
"""


def test_cells(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one leaves a run behind, which ends with the kernel."""
    for name, value in sandbox.env.items():
        monkeypatch.setenv(name, value)
    cells = [nbformat.v4.new_code_cell(source) for source in (TRAIN, LEFT)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(sandbox.path)}})
    client.execute()
    texts = ["".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells]
    assert texts[0].splitlines() == [*(f"step {step}" for step in range(1, 6)), "0 6"]
    assert texts[1] == "left\n"
    wait_until(lambda: not processes_of(sandbox), "the run of the kernel to end", 90)


def test_a_notebook_on_lbfgs_with_the_replacement_of_the_tutorial(sandbox: Sandbox) -> None:
    """On two hosts every device has a quarter of the data, and the errors are those of a single device."""
    write_files(sandbox.path)
    shutil.copy(Path(__file__).parent / "lbfgs_notebook.py", sandbox.path / "notebook.py")
    done = sandbox.podrun("--slice", "cpu-2x2", "--simulate", "--", "python", "notebook.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for process in range(2):
        results = json.loads((sandbox.path / f"found.{process}").read_text())
        assert results["pmap"]["rows"] == [500] * 2
        assert results["pmap"]["devices"] == 4
        assert results["pmap"]["errors"] == pytest.approx(results["jit"]["errors"], rel=1e-4)
        assert results["pmap"]["errors"][-1] < 0.05 * results["pmap"]["errors"][0]

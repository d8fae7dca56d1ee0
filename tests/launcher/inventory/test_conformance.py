"""The tests of `InventoryConformance`, over each inventory that lists hosts, and over plug-ins that break a rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.host.google import ENV_SERVER
from podrun.launcher.inventory.base import INVENTORIES
from podrun.launcher.inventory.conformance import InventoryConformance
from podrun.launcher.inventory.hosts_from import SOURCES

from ...gcloud import ZONE, make_gcloud, node
from ...metadata_server import serving, tpu_worker
from .plugin import GOOD, install


class TestHosts(InventoryConformance):
    option, value, refused = "hosts", "n[01-12],10.0.0.5", ("", "n[3-1]", "a b:22")


class TestLocal(InventoryConformance):
    option, value = "local", True


class TestHostfile(InventoryConformance):
    option = "hostfile"

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.value, wrong = tmp_path / "hosts", tmp_path / "wrong"
        self.value.write_text("a slots=8\nb slots=8\n")
        wrong.write_text("a slots=x\n")
        self.refused = (tmp_path, tmp_path / "none", wrong)


class TestTpuVm(InventoryConformance):
    option, value, refinements, refused = "tpu", "my-tpu", {"zone": ZONE}, ("-x", "other")

    @pytest.fixture(autouse=True)
    def _gcloud(self, bin: Path) -> None:
        make_gcloud(bin, node())


class TestSlurm(InventoryConformance):
    option, value, refused = "slurm", "", ("partition=gpu",)

    @pytest.fixture(autouse=True)
    def _programs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, out in (("scontrol", r"n1\nn2\n"), ("sinfo", r"n1|10.0.0.1\nn2|10.0.0.2\n")):
            (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{out}'\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]"), ("SLURM_GPUS_ON_NODE", "8")):
            monkeypatch.setenv(name, value)


class TestMetadata(InventoryConformance):
    value, refused = "metadata", ("metadata:0",)

    @pytest.fixture(autouse=True)
    def _server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with serving(tpu_worker()) as (address, _):
            monkeypatch.setenv(ENV_SERVER, address)
            yield


class TestGke(InventoryConformance):
    value, refused = "gke", ("gke:0",)

    @pytest.fixture(autouse=True)
    def _variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v4-16")


class TestPlugin(InventoryConformance):
    value, refused = "mine:pod-a", ("mine:other", "mien")

    @pytest.fixture(autouse=True)
    def _package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        install(tmp_path)


def test_no_inventory_is_left_out() -> None:
    tested = InventoryConformance.__subclasses__()
    assert {kind.option for kind in tested} == {
        name for name, inventory in INVENTORIES.items() if inventory.lists_hosts
    }
    assert set(SOURCES) < {kind.value for kind in tested if kind.option == "hosts_from"}


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("PODS[name] = PODS[name][::-1]", "says_the_same_again"),
        ("print('asking')", "leaves_this_process_alone"),
        ("os.environ['X_OF_A_PLUGIN'] = '1'", "leaves_this_process_alone"),
        ("os.chdir('/')", "leaves_this_process_alone"),
        ("raise UserError('no')", "says_why_there_is_no_pod"),
        ("raise UserError('there is no \\x1b[2Jpod of it')", "says_why_there_is_no_pod"),
        ("name = ''", "says_why_there_is_no_pod"),
    ],
)
def test_a_broken_rule_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, test: str) -> None:
    """By the test of that rule."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("X_OF_A_PLUGIN", raising=False)
    install(tmp_path, GOOD.replace("    if name not in", f"    {body}\n    if name not in"))

    class Broken(InventoryConformance):
        value, refused = "mine:pod-a", ("mine:other",)

    with pytest.raises(AssertionError):
        getattr(Broken(), f"test_{test}")()

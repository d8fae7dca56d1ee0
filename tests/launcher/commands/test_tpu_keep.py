"""`podrun tpu keep`: mistakes are found before a TPU VM costs anything."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from ...conftest import Sandbox
from ...gcloud import ZONE, Service, first_on_path, interrupt_held
from .conftest import Podrun

PAGE = Path(__file__).parents[3] / "docs" / "tpu_vm.md"
KEEP = ("tpu", "keep", "my-tpu", "--zone", ZONE, "--slice", "v4-16", "--spot")
BUCKET = ("--workdir", "gs://my-bucket/first")
KEEP_AND_DELETE = (*f"tpu keep my-tpu --zone {ZONE} --slice v5p-32 --down --yes".split(), *BUCKET, "train.yaml")


def widen(sandbox: Sandbox) -> None:
    """Make the job's batch large enough for 16 chips."""
    train = sandbox.path / "train.yaml"
    train.write_text(train.read_text().replace("batch_size: 8", "batch_size: 16"))


@pytest.fixture(autouse=True)
def service(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Service of the gcloud that is found first, in the project."""
    monkeypatch.chdir(sandbox.path)
    return Service(first_on_path(sandbox.path, monkeypatch))


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("train.yaml",), "the workdir would be on the disk of my-tpu-w-0, which goes with the TPU VM"),
        ((*BUCKET, "train.yaml", "stepz=3"), "stepz"),
        ((*BUCKET, "train.yaml", "parallel={name: jit, mesh: {fsdp: 3}}"), "fsdp"),
        ((*BUCKET, "nothing.yaml"), "nothing.yaml"),
        ((*BUCKET, "--pod", "nothing.yaml", "train.yaml"), "nothing.yaml"),
        ((*BUCKET, "--", "python", "my.py"), "a user program keeps its results in a folder"),
        (BUCKET, "missing argument 'train.yaml'"),
        (("--reserved", "train.yaml"), "--spot and --reserved are two classes of cost"),
        (("--zones", "a,b", "train.yaml"), "--zone and --zones both say where; give one of them"),
        ((*BUCKET, "--prices", "nothing.json", "train.yaml"), "--prices: nothing.json cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes_are_found_first(service: Service, podrun: Podrun, words: tuple[str, ...], what: str) -> None:
    """gcloud is not even asked."""
    done = podrun(*KEEP, *words, "--yes") if "--" not in words else podrun(*KEEP, "--yes", *words)
    assert done.code == 2 and what in done.err, done.err
    assert "Traceback" not in done.err and not (service.folder / "asked").exists()


@pytest.mark.parametrize("state", [None, "ACTIVE", "SUSPENDED"])
def test_the_user_is_asked_even_if_it_is_up(
    service: Service, podrun: Podrun, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """It may have to be deleted and created later, when nobody is there to be asked."""
    if state:
        node = {"acceleratorType": "v4-16"}
        service.make(state=state, tpu={"nodeSpec": [{"node": node, "nodeId": "my-tpu"}]})
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        done = podrun(*KEEP, *BUCKET, "train.yaml")
    assert done.code == 2 and "there is no terminal to ask whether to" in done.err and "add --yes" in done.err
    assert "cost class  spot" in done.out and service.asked == []


def test_hosts_that_it_does_not_list_are_an_error(service: Service, podrun: Podrun) -> None:
    """Nothing is deleted, and the message says so: a v4-16 has two."""
    done = podrun(*KEEP, *BUCKET, "train.yaml", "--yes")
    assert done.code == 69 and "a v4-16 has 2 hosts, but gcloud lists 1 under networkEndpoints" in done.err
    assert f"podrun tpu down my-tpu --zone {ZONE}" in done.out
    assert service.state["created"] == 1


def test_the_commands_of_the_page(
    service: Service, sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All `podrun tpu` of docs/tpu_vm.md, in its order; `keep` up to the question."""
    (sandbox.path / "pod.yaml").write_text("workdir: /mnt/runs\n")
    (sandbox.path / "my_train.py").touch()
    (sandbox.path / "skus.json").write_text("[]")
    widen(sandbox)
    lines = re.findall(r"^    podrun (tpu .*?)(?: {2,}#.*)?$", PAGE.read_text(), re.MULTILINE)
    assert [line.split()[1] for line in lines] == ["up", "list", "down", "keep", "up", "up", "keep", "keep", "keep"]
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        for line in lines:
            words = shlex.split(line)
            done = podrun(*words, *(() if words[1] in ("keep", "list") else ("--yes",)))
            service.change_compute(groups={}, templates={}, policies={})
            if words[1] == "keep":
                assert done.code == 2 and "there is no terminal to ask whether to create it" in done.err, done.err
            else:
                assert done.code == 0, done.err
    assert service.state["created"] == 1 and not service.state["queued"]


def test_zones_price_and_what_happens_at_the_end(service: Service, sandbox: Sandbox, podrun: Podrun) -> None:
    """They are in the question. With --down nothing is left where the run cannot even begin."""
    price = {
        "usageUnit": "h",
        "tieredRates": [{"unitPrice": {"currencyCode": "USD", "units": "2", "nanos": 500000000}}],
    }
    sku = {
        "description": "TpuV5p in Iowa",
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": price}],
    }
    (sandbox.path / "skus.json").write_text(json.dumps({"skus": [sku]}))
    widen(sandbox)
    words = (
        "tpu",
        "keep",
        "my-tpu",
        "--zones",
        f"{ZONE},us-east5-b",
        "--slice",
        "v5p-32",
        "--prices",
        "skus.json",
        *BUCKET,
    )
    service.change_compute(courses=[["RUNNING", "RUNNING", "TERMINATED"]])
    with Path(os.devnull).open() as nothing, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", nothing)
        done = podrun(*words, "train.yaml")
    rows = dict(re.findall(r"^  (\S.*?) {2,}(.*)$", done.out, re.MULTILINE))
    assert done.code == 2 and rows["zone"] == ZONE and rows["then tried"] == "us-east5-b", done.err
    assert rows["price"] == f"{ZONE} 40.00 USD per hour (16 x 2.5); us-east5-b not listed, by skus.json"
    assert rows["at the end"] == "it stays" and service.ledger == []
    service.change_compute(
        faults={"instances list": ["ERROR: (g) Required 'compute.instances.list' permission for 'x'"]}
    )
    done = podrun(*words, "--down", "--yes", "train.yaml")
    assert done.code == 2 and "roles/compute.viewer" in done.err, done.err
    assert done.out.endswith("podrun: my-tpu is deleted\n") and service.ledger == []


@pytest.mark.parametrize(
    "held", ["instance-templates create", "managed create", "managed list-instances", "instances list"]
)
def test_ctrl_c_with_down_leaves_nothing(service: Service, sandbox: Sandbox, held: str) -> None:
    """At every stage before the run."""
    widen(sandbox)
    service.change_compute(faults={held: ["hold"]}, courses=[["PENDING", "RUNNING"]])
    done = interrupt_held(service, sandbox, *KEEP_AND_DELETE)
    assert done.returncode == 130 and done.stdout.endswith("podrun: my-tpu is deleted\n"), done
    assert service.ledger == []


def test_ctrl_c_while_it_is_deleted_changes_nothing_at_first(service: Service, sandbox: Sandbox) -> None:
    """The first one may belong to those that ended the run."""
    widen(sandbox)
    denied = "ERROR: (g) Required 'compute.instances.list' permission for 'x'"
    service.change_compute(
        faults={"managed delete": ["hold"], "instances list": [denied]}, courses=[["PENDING", "RUNNING"]]
    )
    done = interrupt_held(service, sandbox, *KEEP_AND_DELETE)
    assert "podrun: still deleting my-tpu, as --down says. Ctrl-C again leaves what is left of it" in done.stderr
    assert done.stdout.endswith("podrun: my-tpu is deleted\n") and service.ledger == [], done

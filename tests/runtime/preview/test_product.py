"""Arrays on a mesh that is typed: what they look like, and the layout of a product."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from podrun.runtime.contract import UserError
from podrun.runtime.preview.product import look_at_arrays, parse_array
from podrun.runtime.preview.render_arrays import text

MESH = {"data": 2, "model": 2}
AXES = ["", "@data", "@model", "@(data,model)", "@(model,data)"]


def pairs() -> list[tuple[str, str]]:
    """Every layout of a matrix: no axis divides two dimensions."""
    return [(a, b) for a, b in itertools.product(AXES, AXES) if not any(n in a and n in b for n in MESH)]


@pytest.mark.parametrize(("rows", "columns"), pairs())
def test_every_layout_of_a_matrix(rows: str, columns: str) -> None:
    """The picture names each device once for each part that it has, and the parts are those of the array itself."""
    (drawn,) = look_at_arrays(MESH, [f"8{rows},4{columns}"], 80).arrays
    spec = parse_array(f"8{rows},4{columns}", MESH).partition
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    sharding = NamedSharding(jax.sharding.Mesh(devices, tuple(MESH)), spec)
    shards = jax.device_put(np.zeros((8, 4)), sharding).addressable_shards
    assert drawn.layout.part == shards[0].data.shape
    assert drawn.layout.parts == len({str(shard.index) for shard in shards})
    for shard in shards:
        assert str(shard.device.id) in drawn.picture


@pytest.mark.parametrize(
    ("a", "b", "spec", "sent", "explicit"),
    [
        ("8@data,4", "4,6@model", "P('data', 'model')", {}, "float32[8@data,6@model]"),
        ("8@data,4@model", "4@model,6", "P('data', None)", {"all-reduce": 1}, "an error (Contracting dimensions"),
        ("8,4", "4,6", "P(None, None)", {}, "float32[8,6]"),
    ],
)
def test_the_layout_of_a_product(a: str, b: str, spec: str, sent: dict[str, int], explicit: str) -> None:
    """The compiler's layout of the result, what it sends for it, and the type with explicit axes."""
    report = look_at_arrays(MESH, [a, b], 80)
    assert report.product is not None
    assert report.product.result.spec in (spec, "P()" if spec == "P(None, None)" else spec)
    assert report.product.collectives == sent
    assert report.product.explicit.startswith(explicit)
    assert f"{a} times {b}" in text(report)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ("", "not an array"),
        ("8@", "not an array"),
        ("8@data,4@@model", "not an array"),
        ("8x4", "not an array"),
        ("8@rows", "no axis 'rows'; it has data, model"),
        ("8@data,4@data", "divides it twice"),
        ("7@data", "7 does not divide into 2 parts"),
        ("0", "does not divide"),
    ],
)
def test_what_is_no_array(array: str, message: str) -> None:
    """The message says what is wrong, and which array it is."""
    with pytest.raises(UserError, match=message) as caught:
        parse_array(array, MESH)
    assert str(caught.value).startswith(f"--array {array}:")


def test_shapes_that_have_no_product() -> None:
    with pytest.raises(UserError, match=r"no matrix product of \[8, 4\] and \[8, 4\]"):
        look_at_arrays(MESH, ["8,4", "8,4"], 80)


def inspect(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "podrun.launcher.cli", "inspect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command() -> None:
    """Pictures and layouts as text and as JSON; more devices than this process has."""
    done = inspect("--mesh", "data=4,model=2", "--array", "16@data,32@model", "--array", "32@model,8")
    assert done.returncode == 0, done.stderr
    assert "split over data in 4 parts of [4, 8], each on 2 devices" in done.stdout
    assert "CPU 0,1" in done.stdout
    done = inspect("--mesh", "data=4", "--array", "16@data", "--json")
    assert json.loads(done.stdout)["arrays"][0]["layout"]["part"] == [4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "data", "--array", "4"], "write it like data=4,model=2"),
        (["--mesh", "data=2"], "lays out one array, or two"),
        (["--mesh", "data=4096", "--array", "4096@data"], "at most 512"),
        (["--array", "4"], "go together"),
        (["--mesh", "data=2", "--array", "4", "job.yaml"], "go together"),
        ([], "give a train.yaml, or --mesh and --array"),
    ],
)
def test_what_the_command_does_not_take(arguments: list[str], message: str) -> None:
    """Bad input: exit code 2, and what to do."""
    done = inspect(*arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr

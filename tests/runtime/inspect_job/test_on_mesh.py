"""Arrays on a mesh that is typed: what they look like, and the layout of an expression over them."""

from __future__ import annotations

import itertools
import json

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding

from podrun.runtime.contract import UserError
from podrun.runtime.inspect_job.array_spec import parse_array
from podrun.runtime.inspect_job.collectives import Collective, collectives
from podrun.runtime.inspect_job.on_mesh import look_at_arrays
from podrun.runtime.inspect_job.render_arrays import text

from ...conftest import Podrun

MESH = {"data": 2, "model": 2}
AXES = ["", "@data", "@model", "@(data,model)", "@(model,data)"]


def pairs() -> list[tuple[str, str]]:
    """Every layout of a matrix: no axis divides two dimensions."""
    return [(a, b) for a, b in itertools.product(AXES, AXES) if not any(n in a and n in b for n in MESH)]


@pytest.mark.parametrize(("rows", "columns"), pairs())
def test_every_layout_of_a_matrix(rows: str, columns: str) -> None:
    """The picture names each device once for each part that it has, and the parts are those of the array itself."""
    (drawn,) = look_at_arrays(MESH, [f"8{rows},4{columns}"], None, 80).arrays
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
    report = look_at_arrays(MESH, [a, b], None, 80)
    assert report.result is not None and report.result.explicit is not None
    assert report.result.value.spec == spec
    assert {c.kind: c.count for c in report.result.collectives} == sent
    assert report.result.explicit.startswith(explicit)
    assert f"A={a}" in text(report)
    assert "\nA @ B\n" in text(report)


LAYER = ["x=16@data,8", "w=8,4@model", "b=4@model"]


@pytest.mark.parametrize(
    ("arrays", "expression", "part", "sent"),
    [
        (["A=16@data,8@model"], "2*sin(A)**2 + 1", (8, 4), []),
        (["A=16@data,8@model"], "A.sum(axis=0)", (4,), [Collective("all-reduce", "f32[4]", 16, 1)]),
        (["A=16@data,8@model"], "A.sum()", (), [Collective("all-reduce", "f32[]", 4, 2)]),
        (["A=16@data,8@model"], "sum(A, (0, 1), keepdims=True)", (1, 1), [Collective("all-reduce", "f32[]", 4, 2)]),
        (["A=16@data,8@model"], "A.T", (4, 8), []),
        (["A=16@data,8", "B=16@data,8"], "A*B", (8, 8), []),
        (["A=16@data,8", "B=16,8@model"], "(A*B).sum(0)", None, None),
        (LAYER, "softmax(x @ w + b)", (8, 2), [Collective("all-reduce", "f32[8]", 32, 2)]),
        (LAYER, "-log_softmax(relu(x @ w))[0]", None, "not allowed"),
        (["A=16,8 on 3"], "softmax(A, axis=0)", (16, 8), []),
        (["self=4@data", "fun=4@data"], "self + fun", (2,), []),
        (["A=1,8@data", "B=6@model,1"], "A * B", (3, 4), []),
    ],
)
def test_the_layout_of_an_expression(
    arrays: list[str], expression: str, part: tuple[int, ...] | None, sent: list[Collective] | str | None
) -> None:
    if isinstance(sent, str):
        with pytest.raises(UserError, match=sent):
            look_at_arrays(MESH, arrays, expression, 80)
        return
    result = look_at_arrays(MESH, arrays, expression, 80).result
    assert result is not None
    if sent is None:  # what moves is the compiler's choice
        assert result.collectives
    else:
        assert (result.value.layout.part, list(result.collectives)) == (part, sent)


def test_an_array_on_one_device() -> None:
    report = look_at_arrays(MESH, ["A=16,8 on 3", "B=16,8 on 3", "C=16@data,8"], "maximum(A, B)", 80)
    assert [drawn.spec for drawn in report.arrays] == ["on device 3", "on device 3", "P('data', None)"]
    assert report.result is not None
    assert (report.result.value.spec, report.result.explicit) == ("on device 3", None)
    assert report.result.value.layout.where == "whole on one of the 4 devices"
    for other, where in (("B=16,8@data", "all 4 devices"), ("B=16,8 on 0", "device 0")):
        with pytest.raises(UserError, match=f"A on device 3, B on {where}.*JAX refuses"):
            look_at_arrays(MESH, ["A=16,8 on 3", other.replace("16,8@data", "16@data,8")], "A + B", 80)


def test_collectives_of_a_program() -> None:
    """Arrays in the order of the program, an asynchronous one by what it returns, several in one operation added up."""
    program = """
    %a.1 = (f32[2,4]{1,0}, bf16[]) all-reduce(%x, %y), channel_id=1, replica_groups={{0,1}}
    %g = (f32[1,4]{1,0}, f32[2,4]{1,0}) all-gather-start(%x), dimensions={0}
    %d = f32[2,4]{1,0} all-gather-done(%g)
    ROOT %p = s8[3]{0} collective-permute(%z), source_target_pairs={{0,1}}
    %q = s8[3]{0} collective-permute(%p), source_target_pairs={{0,1}}
    %r = pred[8]{0} reduce-scatter(%q)
    %t = f64[8,2]{1,0} all-to-all(%all-gather)
    """
    assert collectives(program) == (
        Collective("all-reduce", "f32[2,4], bf16[]", 34, 1),
        Collective("all-gather", "f32[2,4]", 32, 1),
        Collective("collective-permute", "s8[3]", 3, 2),
        Collective("reduce-scatter", "pred[8]", 8, 1),
        Collective("all-to-all", "f64[8,2]", 128, 1),
    )


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
        ("a-b=8", "not a name"),
        ("sin=8", "sin is a function"),
        ("A=", "not an array"),
        ("8 on 4", "no device 4; the mesh has 0 to 3"),
        ("8 on \u0663", "no device"),
        ("8@data on 1", "on one device is not divided"),
        ("99999999999,99999999999", "at most"),
    ],
)
def test_what_is_no_array(array: str, message: str) -> None:
    """The message says what is wrong, and which array it is."""
    with pytest.raises(UserError, match=message) as caught:
        parse_array(array, MESH)
    assert str(caught.value).startswith(f"--array {array}:")


def test_shapes_that_have_no_product() -> None:
    with pytest.raises(UserError, match=r"A @ B does not fit \[8, 4\] and \[8, 4\]: the last dimension"):
        look_at_arrays(MESH, ["8,4", "8,4"], None, 80)


def test_all_arrays_that_are_wrong_are_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        look_at_arrays(MESH, ["A=7@data", "A=8@rows", "B=8", "B=8"], "A", 80)
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "--array A=7@data",
        "--array A=8@rows",
        "--array B=8",
    ]


def test_the_command(in_process: Podrun) -> None:
    """Pictures and layouts as text and as JSON; more devices than this process has."""
    done = in_process("inspect", "--mesh", "data=4,model=2", "--array", "16@data,32@model", "--array", "32@model,8")
    assert done.returncode == 0, done.stderr
    assert "split over data in 4 parts of [4, 8], each on 2 devices" in done.stdout
    assert "CPU 0,1" in done.stdout
    words = ("--mesh", "x=2,y=4", "--array", "A=16@x,32@y", "--expr", "2*sin(A).sum(axis=0)**2 + 1", "--json")
    report = json.loads(in_process("inspect", *words).stdout)
    assert (report["arrays"][0]["layout"]["part"], report["result"]["value"]["layout"]["part"]) == ([8, 8], [8])
    assert report["result"]["collectives"] == [{"kind": "all-reduce", "array": "f32[8]", "bytes": 32, "count": 1}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "data", "--array", "4"], "write it like data=4,model=2"),
        (["--mesh", "data=2"], "lays out arrays, but there is none"),
        (["--mesh", "data=2", "--array", "A=4", "--expr", "B"], "there is no array B; there are A"),
        (["--expr", "A"], "go together"),
        (["--mesh", "data=4096", "--array", "4096@data"], "at most 512"),
        (["--array", "4"], "go together"),
        (["--mesh", "data=2", "--array", "4", "job.yaml"], "go together"),
        ([], "give a train.yaml, or --mesh and --array"),
    ],
)
def test_what_the_command_does_not_take(in_process: Podrun, arguments: list[str], message: str) -> None:
    """Bad input: exit code 2, and what to do."""
    done = in_process("inspect", *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr

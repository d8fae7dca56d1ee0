"""What compiled programs need: memory, named buffers, traffic. Lines of programs are as libtpu 0.0.42 and XLA write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.inspect_job import hlo
from podrun.runtime.inspect_job.buffers import largest
from podrun.runtime.inspect_job.compiled import sizes
from podrun.runtime.inspect_job.traffic import PodMesh, traffic
from podrun.runtime.job_report import Buffer, Traffic

from .programs import program


@dataclass(frozen=True)
class Chip:
    """A device with no more than traffic asks for."""

    id: int
    platform: str = "tpu"
    process_index: int = 0
    slice_index: int = 0


def mesh(*shape: int, slices: int = 1) -> PodMesh:
    count = int(np.prod(shape))
    chips = [Chip(n, slice_index=n * slices // count, process_index=n // 4) for n in range(count)]
    return PodMesh(("batch", "fsdp")[: len(shape)], np.array(chips, object).reshape(shape))


ALL_REDUCE = "  %a = f32[8,6]{1,0:T(8,128)} all-reduce(%p), channel_id=1, replica_groups="


@pytest.mark.parametrize(
    ("groups", "devices", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7},{8,9,10,11},{12,13,14,15}}", 4, "fsdp"),
        ("{{0,4,8,12},{1,5,9,13},{2,6,10,14},{3,7,11,15}}", 4, "batch"),
        ("{}", 16, "batch x fsdp"),
        ("[4,4]<=[16]", 4, "fsdp"),
        ("[4,4]<=[4,4]T(1,0)", 4, "batch"),
        ("[1,16]<=[16]", 16, "batch x fsdp"),
        ("mesh['axis_0'=4,'axis_1'=4] {'axis_1'}", 4, "fsdp"),
        ("mesh['axis_0'=4,'axis_1'=4] {'axis_0'}", 4, "batch"),
        ("mesh['axis_0'=1,'axis_1'=4,'axis_2'=4], device_ids=([4,4]T(1,0)) {'axis_1'}", 4, "fsdp"),
        ("mesh['a'=2,'b'=2,'c'=4] {'a','b'}", 4, "batch"),
    ],
)
def test_every_form_of_a_group(groups: str, devices: int, axes: str) -> None:
    found = traffic(program(f"{ALL_REDUCE}{groups}, use_global_device_ids=true, to_apply=%add"), mesh(4, 4))
    assert found == (Traffic("all-reduce", 1, devices, "ICI", 192, axes, devices),)


def test_a_tpu_writes_a_reduce_scatter_as_a_fusion() -> None:
    """And it spreads one all-gather over several fusions, which have its channel in common."""
    scatter = """%all-reduce-scatter.3 (input: f32[8,6]) -> f32[2,6] {
  %input = f32[8,6]{1,0} parameter(0)
  %all-reduce.49 = f32[8,6]{1,0} all-reduce(%input), channel_id=7, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %s = f32[2,6]{1,0} dynamic-slice(%all-reduce.49), dynamic_slice_sizes={2,6}
}

%begin (input: f32[2,6]) -> f32[8,6] {
  ROOT %g = f32[8,6]{1,0} all-gather(%input), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}

%middle (input: f32[2,6]) -> f32[8,6] {
  ROOT %g.1 = f32[8,6]{1,0} all-gather(%input), channel_id=4, replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}
"""
    lines = (
        "  %fusion.1 = f32[8,6]{1,0} fusion(%p), kind=kCustom, calls=%begin",
        "  %fusion.2 = f32[8,6]{1,0} fusion(%p), kind=kCustom, calls=%middle",
        "  ROOT %fusion.3 = f32[2,6]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.3",
    )
    assert set(traffic(program(*lines, others=scatter), mesh(2, 4))) == {
        Traffic("all-gather", 1, 4, "ICI", 192, "fsdp", 4),
        Traffic("reduce-scatter", 1, 4, "ICI", 192, "fsdp", 4),
    }


def test_the_parts_of_a_large_all_reduce_are_all_counted() -> None:
    """XLA splits one that is large, and the parts keep its channel."""
    lines = [f"{ALL_REDUCE}[1,16]<=[16], to_apply=%add".replace("%a =", f"%a.{n} =") for n in range(3)]
    assert traffic(program(*lines), mesh(4, 4)) == (Traffic("all-reduce", 3, 16, "ICI", 3 * 192, "batch x fsdp", 16),)


def test_between_slices() -> None:
    """libtpu writes it as a transfer by the hosts. Over the links of a slice nothing is slower than ICI."""
    sent = (
        "  %send.9 = (f32[576]{0}, u32[], token[]) send(%b, %after-all.9), channel_id=18, is_host_transfer=true, "
        'frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_megascale_transfer_type="ALL_REDUCE"}'
    )
    whole = f"{ALL_REDUCE}[1,16]<=[16], to_apply=%add"
    found = traffic(program(sent, whole), mesh(4, 4, slices=2))
    assert found == (
        Traffic("all-reduce", 1, 2, "DCN", 2304, "", 2),
        Traffic("all-reduce", 1, 16, "DCN", 192, "batch x fsdp", 2),
    )


def test_a_loop_sends_as_often_as_it_runs() -> None:
    body = """%body (t: f32[8]) -> f32[8] {
  ROOT %r = f32[2]{0} reduce-scatter(%t), channel_id=2, replica_groups=[1,4]<=[4], dimensions={0}, to_apply=%add
}
"""
    loop = '  %w = f32[8]{0} while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"12"}}'
    assert traffic(program(loop, others=body), mesh(4)) == (
        Traffic("reduce-scatter", 12, 4, "ICI", 12 * 32, "batch", 4),
    )


def test_arrays_in_memory_have_whole_tiles() -> None:
    padded, in_vmem, plain = hlo.arrays(
        "(bf16[84,12,1024,64]{3,2,1,0:T(8,128)(2,1)}, f32[3,5]{0,1:T(8,128)S(1)}, pred[7])"
    )
    assert (padded.bytes, padded.padded) == (84 * 12 * 1024 * 64 * 2, 84 * 12 * 1024 * 128 * 2)
    assert (in_vmem.in_memory, in_vmem.padded) == (False, 8 * 128 * 4)
    assert (plain.bytes, plain.padded, plain.in_memory, plain.text) == (7, 7, True, "pred[7]")


def test_the_largest_buffers_at_the_peak_have_names_of_the_user() -> None:
    """By hand: `a` and `c` live together when `c` is written, with `b` no longer; a view is no buffer of its own."""
    lines = (
        "  %p = f32[4]{0} parameter(0), metadata={op_name=\"state.params['w']\"}",
        '  %b = f32[100]{0} add(%p, %p), metadata={op_name="jit(step)/jvp(Net)/first/add"}',
        '  %a = f32[50]{0} exponential(%b), metadata={op_name="jit(step)/jvp(Net)/first/attn/exp"}',
        "  %v = f32[5,10]{1,0} bitcast(%a)",
        '  %c = f32[90]{0} dot(%v), metadata={op_name="jit(step)/transpose(jvp(Net))/last_0/dot_general"}',
        '  %d = f32[90]{0} dot(%v), metadata={op_name="jit(step)/transpose(jvp(Net))/last_1/dot_general"}',
        "  ROOT %o = f32[4]{0} subtract(%p, %c, %d)",
    )
    assert largest(program(*lines)) == (
        Buffer("last_*/dot_general, for the gradient", "f32[90]", 360, 2),
        Buffer("first/attn/exp", "f32[50]", 200, 1),
    )


@pytest.mark.parametrize(
    ("op_name", "name"),
    [
        ("jit(step)/jvp(Net)/h_0/attn/jit(softmax)/exp", "h_0/attn/exp"),
        (
            "jit(step)/shard_map/transpose(jvp(Net))/h_0/attn/bhts,bshd->bthd/dot_general",
            "h_0/attn/bhts,bshd->bthd/dot_general, for the gradient",
        ),
        ("jit(step)/while/body/closed_call/jvp(Net)/h_0/tanh", "h_0/tanh"),
        ("jit(step)/while/body/closed_call/transpose(jvp(Net))/h_0/mul", "h_0/mul, for the gradient"),
        (
            "jit(step)/transpose(jvp(Net))/while/body/closed_call/checkpoint/rematted_computation/layers/tanh",
            "layers/tanh, repeated by remat",
        ),
        ("jit(step)/while/body/eval_jaxpr/h_0/tanh", "h_0/tanh"),
        ("checkpoint/layers/fc/reduce_sum", "layers/fc/reduce_sum"),
        ("jit(step)/jvp(Net)/body/add", "body/add"),
        ("jit(step)/while", "add"),
        ("jit(step)/while/body/closed_call", "add"),
        ("reduce_sum", "reduce_sum"),
        ("state.params['h_0']['attn']['kernel']", "params/h_0/attn/kernel"),
        ("state.opt_state[0].mu['w']", "opt_state/0/mu/w"),
        ("batch['tokens']", "batch['tokens']"),
        ("", "add"),
    ],
)
def test_names_are_those_of_the_user(op_name: str, name: str) -> None:
    """Without JAX's own parts: transformations, loops, and functions of JAX."""
    line = f'  %a = f32[4]{{0}} add(%p), metadata={{op_name="{op_name}"}}' if op_name else "  %a = f32[4]{0} add(%p)"
    (buffer,) = largest(program(line, "  ROOT %b = f32[1]{0} abs(%a)"))
    assert buffer.name == name


@pytest.mark.parametrize("steps", [0, 5])
def test_buffers_of_a_real_program(steps: int) -> None:
    """Its large array is found, inside a loop as well, and the sum is near the compiler's own."""

    def inner(x: Any) -> Any:
        with jax.named_scope("wide"):
            return jnp.tanh(x[:, None] * x[None, :]).sum(1) @ jnp.ones((len(x), len(x)))

    def function(x: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, x: inner(x), x) if steps else inner(x)

    found = largest(hlo.read(jax.jit(function).lower(jnp.ones(512)).compile().as_text()))
    assert any(buffer.bytes == 512 * 512 * 4 for buffer in found), found


def test_what_a_loop_keeps_of_every_turn() -> None:
    """The gradient of a loop over layers needs arrays of all of them: they have the name of what they collect."""

    def layer(x: Any, weights: Any) -> Any:
        with jax.named_scope("layer"):
            return x + jnp.tanh(x @ weights) @ weights.T, None

    def loss(weights: Any, x: Any) -> Any:
        return jax.lax.scan(layer, x, weights)[0].sum()

    shapes = jax.ShapeDtypeStruct((6, 64, 256), jnp.float32), jax.ShapeDtypeStruct((512, 64), jnp.float32)
    found = largest(hlo.read(jax.jit(jax.grad(loss)).lower(*shapes).compile().as_text()))
    names = {buffer.name: buffer.array for buffer in found}
    assert names["layer/tanh, of every turn of a loop"] == "f32[6,512,256]"
    assert "f32[6,512,64]" in names.values(), found
    assert found[0].array == "f32[6,512,256]"


def test_a_sum_that_a_loop_carries() -> None:
    """On TPUs it begins as memory without a name; so it has the name of what is computed for the next turn."""
    body = """%body (t: (f32[100], f32[7])) -> (f32[100], f32[7]) {
  %t = (f32[100]{0}, f32[7]{0}) parameter(0)
  %g = f32[100]{0} get-tuple-element(%t), index=0
  %k = f32[7]{0} get-tuple-element(%t), index=1
  %s = f32[100]{0} add(%g, %g), metadata={op_name="jit(step)/while/body/h_0/add"}
  ROOT %o = (f32[100]{0}, f32[7]{0}) tuple(%s, %k)
}
"""
    lines = (
        '  %z = f32[100]{0} custom-call(), custom_call_target="AllocateBuffer"',
        '  %y = f32[7]{0} custom-call(), custom_call_target="AllocateBuffer"',
        "  %u = (f32[100]{0}, f32[7]{0}) tuple(%z, %y)",
        "  %w = (f32[100]{0}, f32[7]{0}) while(%u), condition=%c, body=%body",
        "  %r = f32[100]{0} get-tuple-element(%w), index=0",
        "  ROOT %m = f32[1]{0} abs(%r)",
    )
    assert set(largest(program(*lines, others=body))) == {
        Buffer("h_0/add, carried through a loop", "f32[100]", 400, 1),
        Buffer("custom-call", "f32[7]", 28, 1),
    }


def test_traffic_of_a_real_program() -> None:
    devices = np.array(jax.devices()).reshape(-1, 2)
    pod = Mesh(devices, ("batch", "fsdp"))
    split, whole = (NamedSharding(pod, spec) for spec in (PartitionSpec("fsdp"), PartitionSpec()))
    text = jax.jit(lambda x: x * 2, in_shardings=split, out_shardings=whole).lower(jnp.ones((8, 6))).compile().as_text()
    found = traffic(hlo.read(text), PodMesh(("batch", "fsdp"), devices))
    assert found == (Traffic("all-gather", 1, 2, "", 192, "fsdp", 2),)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (22.97G) exceeds "
            "available HBM (15.75G).",
            (22.97, 15.75),
        ),
        (
            "Ran out of memory in memory space hbm. Used 17.21G of 15.75G hbm. Exceeded hbm capacity by 1.46G.",
            (17.21, 15.75),
        ),
        ("RESOURCE_EXHAUSTED: something else", (None, None)),
    ],
)
def test_the_compilers_words_about_too_little_memory(message: str, expected: tuple[float | None, float | None]) -> None:
    assert sizes(message) == tuple(None if gib is None else int(gib * 2**30) for gib in expected)

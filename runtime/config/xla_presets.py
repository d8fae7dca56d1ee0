"""Presets of XLA's flags by name, as other projects publish them for TPUs and GPUs.

A flag that the compiler does not know ends every process at its start, so tests/compilers compiles a step with each preset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Preset(NamedTuple):
    """Flags that belong together."""

    source: str
    """Project that published them, and their name there."""
    flags: tuple[str, ...]


_AXLEARN = "https://github.com/apple/axlearn/blob/main/axlearn/common/compiler_options.py"
_MAXTEXT = "https://github.com/AI-Hypercomputer/maxtext/blob/main/benchmarks/xla_flags_library.py"
_XLA = "https://github.com/openxla/xla/blob/main/docs/determinism.md"
_TOOLBOX = "https://github.com/NVIDIA/JAX-Toolbox/blob/main/docs/GPU_performance.md"
PRESETS: Mapping[str, Mapping[str, Preset]] = {
    "tpu": {
        "latency_hiding": Preset(
            f"{_AXLEARN}: default_xla_options, the last two for v6e",
            (
                "--xla_tpu_enable_latency_hiding_scheduler=true",
                "--xla_tpu_enable_all_experimental_scheduler_features=true",
                "--xla_lhs_prioritize_async_depth_over_stall=ENABLED",
            ),
        ),
        "async_collectives": Preset(
            f"{_MAXTEXT}: CF_FOR_ALL_REDUCE_AND_ALL_GATHER",
            (
                "--xla_enable_async_all_reduce=true",
                "--xla_enable_async_all_gather=true",
                "--xla_tpu_overlap_compute_collective_tc=true",
                "--xla_tpu_enable_async_collective_fusion=true",
                "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
                "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
            ),
        ),
        "reduce_scatter_layout": Preset(
            f"{_MAXTEXT}: LAYOUT_FOR_ALL_REDUCE_SCATTER",
            (
                "--xla_tpu_use_minor_sharding_for_major_trivial_input=true",
                "--xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1",
                "--xla_tpu_assign_all_reduce_scatter_layout=true",
            ),
        ),
        "overlap_between_slices": Preset(
            f"{_MAXTEXT}: DATA_PARALLEL_OVERLAP",
            (
                "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
                "--xla_tpu_data_parallel_opt_different_sized_ops=true",
            ),
        ),
    },
    "gpu": {
        "latency_hiding": Preset(
            f"{_TOOLBOX}: Optimization level", ("--xla_gpu_enable_latency_hiding_scheduler=true",)
        ),
        "pipelined_collectives": Preset(
            f"{_TOOLBOX}: Optimization level",
            (
                "--xla_gpu_enable_pipelined_all_reduce=true",
                "--xla_gpu_enable_pipelined_all_gather=true",
                "--xla_gpu_enable_pipelined_reduce_scatter=true",
                "--xla_gpu_enable_while_loop_double_buffering=true",
            ),
        ),
        "large_collectives": Preset(
            f"{_TOOLBOX}: Flags to enable optimizations for FSDP communication",
            (
                "--xla_gpu_all_gather_combine_threshold_bytes=8589934592",
                "--xla_gpu_reduce_scatter_combine_threshold_bytes=8589934592",
                "--xla_gpu_all_reduce_combine_threshold_bytes=8589934592",
            ),
        ),
        # Without it a GPU adds some numbers in an order that differs from run to run, such as the gradient of an embedding.
        "deterministic": Preset(f"{_XLA}: Execution", ("--xla_gpu_exclude_nondeterministic_ops=true",)),
    },
}
"""Presets by kind of slice and name."""
_VARIABLES = {"tpu": ("tpu", "LIBTPU_INIT_ARGS"), "cuda": ("gpu", "XLA_FLAGS")}
"""By JAX's platform: the kind of slice, and the variable that its compiler reads."""


def unknown_presets(names: Iterable[str]) -> str | None:
    """Return a message about names that no kind of slice has; None if there are none."""
    known = {name for presets in PRESETS.values() for name in presets}
    unknown = [name for name in names if name not in known]
    offered = "; ".join(f"{kind.upper()}s have {', '.join(presets)}" for kind, presets in PRESETS.items())
    return f"there is no preset {unknown[0]}; {offered}" if unknown else None


def misplaced_presets(names: Iterable[str], kind: str, slice: str) -> str | None:
    """Return a message about presets that a slice of this kind does not have; None if there are none.

    On CPUs all presets do nothing, so that a job for TPUs or GPUs can be tried there.
    """
    presets = PRESETS.get(kind)
    wrong = [name for name in names if presets is not None and name not in presets]
    if not presets or not wrong:
        return None
    return (
        f"launch.xla: {wrong[0]} is not a preset for {slice}, which has {kind.upper()}s; give some of {', '.join(presets)}, "
        "or launch.xla=[] for none"
    )


def with_presets(env: Mapping[str, str], names: Sequence[str], platform: str) -> dict[str, str]:
    """Return the environment of a worker with the flags of the presets.

    Args:
        env: variables of the pod and the job. Flags that they have are put last, so they win.
        names: names of presets that exist for the kind of slice.
        platform: JAX's name: `tpu`, `cuda` or `cpu`.
    """
    if not names or platform not in _VARIABLES:
        return dict(env)
    kind, variable = _VARIABLES[platform]
    flags = [flag for name in names for flag in PRESETS[kind][name].flags]
    return {**env, variable: " ".join([*dict.fromkeys(flags), *filter(None, [env.get(variable)])])}

"""Open the compiler of a TPU or GPU on a machine without one, and ask it for the devices of a pod.

libtpu compiles for any TPU topology, and JAX's CUDA plug-in for any number of GPUs of a model whose figures are given
(`gpus/*.txtpb`, as in `xla/backends/gpu/target_config/specs` of https://github.com/openxla/xla).
"""

from __future__ import annotations

import os

from jax.experimental import topologies

from .compiler_package import CompilerPackage, compiler_package
from .contract import UserError
from .device_memory import GPUS
from .devices import Devices
from .target import Target
from .worker.xla_flags import set_xla_flags


def devices_of(target: Target) -> Devices:
    """Return the devices of the target, and set the variables of its compiler.

    Call it before anything is compiled, and call `use_kept` first, so that a compiler stored by podrun can be imported.

    Raises:
        UserError: the compiler is not installed, or does not know the topology.
    """
    package = compiler_package(target.platform)
    _check(package, target)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # otherwise libtpu asks Google's metadata server first
    # Otherwise libtpu locks /tmp/libtpu_lockfile, and a second process that compiles is refused.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    set_xla_flags(os.environ, target.platform, target.devices)  # as the workers have them
    try:
        topology = _topology(target)
    except Exception as error:  # jax raises JaxRuntimeError and others
        reason = str(error).strip().splitlines()
        raise UserError(
            f"the compiler for {target.platform} (JAX {package.jax}, {package.name} {package.installed}) cannot compile for "
            f"{target.slice}, topology {target.topology}: {reason[0] if reason else type(error).__name__}"
        ) from error
    pod = Devices.of_topology(topology.devices)
    if (pod.count, pod.processes) != (target.devices, target.processes):
        raise UserError(
            f"the compiler sees {target.slice} with {pod.count} devices in {pod.processes} processes, and a real one has "
            f"{target.devices} in {target.processes}, so programs for it would be wrong"
        )
    return pod


def _topology(target: Target) -> topologies.TopologyDescription:
    """Return JAX's description of the target's devices."""
    if target.platform == "tpu":
        host = {"chips_per_host_bounds": target.host} if target.host else {}
        slices = {"num_slices": target.slices} if target.slices > 1 else {}
        return topologies.get_topology_desc(target.topology, "tpu", **host, **slices)
    config = (GPUS / f"{target.gpu}.txtpb").read_text()
    return topologies.get_topology_desc(target.gpu, "cuda", target_config=config, topology=target.topology)


def _check(package: CompilerPackage, target: Target) -> None:
    """Raise UserError unless the target's compiler is installed, in the version that this JAX asks for.

    libtpu of another release compiles without a warning, but not as the pod does. Another CUDA plug-in has no memory
    analysis.
    """
    extra = package.platform
    ways = f"`podrun compile --install {extra}`, or `pip install '.[{extra}]'` in podrun's folder"
    if package.installed is None:
        raise UserError(
            f"{package.module}, the compiler for {target.slice}, is not installed; install it here with {ways}"
        )
    if not package.is_installed:
        raise UserError(
            f"{package.module} {package.installed} does not belong to JAX {package.jax}, which asks for {package.version}; "
            f"install that with {ways}"
        )

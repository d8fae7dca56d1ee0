"""JAX on CPU with four virtual devices. Set at import, because it counts only before JAX starts its backend."""

from __future__ import annotations

import os

import jax

from ..conftest import FAST

os.environ |= FAST  # for the interpreters that tests start
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["NPROC"] = "64"  # threads of XLA's CPU client: a collective holds one for each device
# For this one: another folder's tests may have imported JAX already, which reads the environment then.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_disable_most_optimizations", True)

if jax.__version_info__ < (0, 11) and "XLA_FLAGS" not in os.environ:
    # Compiling is most of what these tests cost. XLA's newer code generator for CPUs takes twice as long as the old one, and
    # generating code in parallel a fifth more CPU time than in one thread.
    # XLA reads its flags at the first use. Interpreters that tests start do not get them; later versions may not know them.
    os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    jax.jit(lambda: 0)()
    del os.environ["XLA_FLAGS"]

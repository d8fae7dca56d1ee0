"""Program that knows nothing of podrun: JAX finds the pod by itself; `bare.py fail` ends with an exception."""

import sys

import jax
import jax.numpy as jnp

jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "d"), "d")(jnp.ones(jax.local_device_count()))
print("sum", int(total[0]), "devices", jax.device_count(), "process", jax.process_index(), flush=True)
if "fail" in sys.argv and jax.process_index() == 1:
    raise RuntimeError("one of us")
jax.pmap(lambda x: jax.lax.psum(x, "d"), "d")(jnp.ones(jax.local_device_count())).block_until_ready()

"""A loop of the user's own, whose state is divided over the processes."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import podrun

podrun.init()
layout = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec("d"))
state = {"divided": jax.device_put(jnp.arange(8.0), layout), "all": np.ones(3)}
grow = jax.jit(lambda x: x * 1.25 + 1)
total = jax.jit(jnp.sum)
loop = podrun.steps(int(sys.argv[1]), state, save_every=4)
for step in loop:
    loop.state = {"divided": grow(loop.state["divided"]), "all": loop.state["all"] * 1.5}
    podrun.report(step, loss=total(loop.state["divided"]) + loop.state["all"].sum())

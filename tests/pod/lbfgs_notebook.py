"""L-BFGS under pmap as jaxopt's notebook has it, with names that JAX no longer has. docs/tutorial.md has `old_names`."""

import functools
import json

import old_names  # noqa: F401  isort: skip
import jax
import jax.numpy as jnp
import jaxopt
from flax import jax_utils
from flax.training import common_utils
from sklearn.datasets import make_classification

LBFGS = functools.partial(jaxopt.LBFGS, value_and_grad=True, stepsize=0.0, linesearch="zoom")


def averaged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return jax.tree_map(lambda x: jax.lax.pmean(x, "b"), function(*args, **kwargs))

    return wrapper


def shard(array):
    return jax.device_put_sharded(shards=list(common_utils.shard(array)), devices=jax.devices())


def fit(data, params, use_pmap):
    gradient = jax.value_and_grad(jaxopt.objective.multiclass_logreg)
    state = LBFGS(gradient).init_state(params, data=data)
    if use_pmap:
        update = jax.pmap(LBFGS(averaged(gradient)).update, axis_name="b")
        params, state = jax_utils.replicate((params, state))
        data = jax.tree_map(shard, data)
    else:
        update = jax.jit(LBFGS(gradient).update)
        data = jax.tree_map(jax.device_put, data)
    errors = []
    for _ in range(10):
        params, state = update(params, state, data)
        errors.append((jax_utils.unreplicate(state.error) if use_pmap else state.error).item())
    rows = [shard.data.shape[-2] for shard in data[0].addressable_shards]
    return {"errors": errors, "rows": rows, "devices": jax.device_count()}


examples = make_classification(n_samples=2000, n_features=32, n_classes=5, n_informative=10, random_state=0)
found = {name: fit(examples, jnp.zeros((32, 5)), name == "pmap") for name in ("pmap", "jit")}
with open(f"found.{jax.process_index()}", "w") as file:
    json.dump(found, file)

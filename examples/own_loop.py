"""Your own training loop: a flax NNX model, data-parallel over all devices of the pod.

    python examples/own_loop.py                                          # alone
    podrun --slice cpu-2x2 --simulate -- python examples/own_loop.py     # one process for each host

Run again, it resumes from its last checkpoint (docs/own_programs.md).
"""

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import podrun


class Classifier(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(64, 128, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(self.dropout(nnx.relu(self.hidden(x))))


def create() -> tuple[Classifier, nnx.Optimizer[Classifier]]:
    model = Classifier(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


@jax.jit(donate_argnums=0)
def update(state: nnx.State, batch: dict[str, jax.Array]) -> tuple[nnx.State, jax.Array]:
    model, optimizer = nnx.merge(graph, state)

    def loss_of(model: Classifier) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]).mean()

    loss, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return nnx.state((model, optimizer)), loss


podrun.init()
mesh = Mesh(jax.devices(), ("data",))
everywhere, divided = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))

graph = nnx.graphdef(create())
state = jax.jit(lambda: nnx.state(create()), out_shardings=everywhere)()  # all arrays that a step changes
x, y = load_digits(return_X_y=True)
batches = podrun.data.Batches({"x": np.float32(x / 16), "y": np.int32(y)}, 64, sharding=divided)

train = podrun.steps(300, state, save_every=50)
for step in train:
    train.state, loss = update(train.state, batches[step])
    if step % 10 == 0:
        podrun.report(step, loss=loss)

"""Deep Q-learning: a walk with a replay buffer, a target network and exploration."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import podrun

STEPS, BATCH_SIZE, PLACES, CAPACITY = 80, 32, 5, 256


class QNetwork(nn.Module):
    @nn.compact
    def __call__(self, place):
        return nn.Dense(2)(nn.relu(nn.Dense(32)(jax.nn.one_hot(place, PLACES))))


def walk(place, action):
    """One step to the left or right; the last place ends the episode with a reward."""
    after = max(0, place - 1) if action == 0 else place + 1
    done = after == PLACES - 1
    return (0 if done else after), after, np.float32(done)


@jax.jit
def update(params, target, opt_state, batch):
    def loss_of(params):
        chosen = jnp.take_along_axis(network.apply(params, batch["place"]), batch["action"][:, None], 1)[:, 0]
        best = network.apply(target, batch["after"]).max(1)
        return jnp.mean((batch["reward"] + 0.9 * (1 - batch["reward"]) * best - chosen) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(params)
    updates, opt_state = optimizer.update(gradients, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


podrun.init()
mesh = Mesh(jax.devices(), ("data",))
whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
network, optimizer = QNetwork(), optax.adam(3e-3)
params = network.init(jax.random.key(0), jnp.zeros(1, jnp.int32))
target, opt_state = params, optimizer.init(params)
rng = np.random.default_rng(0)
place = 0
buffer = {name: np.zeros(CAPACITY, np.int32) for name in ("place", "action", "after")}
buffer["reward"] = np.zeros(CAPACITY, np.float32)

params, target, opt_state = jax.jit(lambda state: state, out_shardings=whole)((params, target, opt_state))
train = podrun.steps(STEPS, (params, target, opt_state, buffer, place, rng.bit_generator.state), save_every=10)
for step in train:
    params, target, opt_state, buffer, place, rng.bit_generator.state = train.state
    for moment in range(4 * step - 4, 4 * step):
        values = np.asarray(network.apply(params, np.int32([place]))[0])
        action = rng.integers(2) if rng.random() < max(0.1, 1 - step / 50) else int(values.argmax())
        place, after, reward = walk(before := place, action)
        for name, value in (("place", before), ("action", action), ("after", after), ("reward", reward)):
            buffer[name][moment % CAPACITY] = value
    rows = rng.integers(min(4 * step, CAPACITY), size=BATCH_SIZE)
    batch = jax.device_put({name: values[rows] for name, values in buffer.items()}, split)
    params, opt_state, loss = update(params, target, opt_state, batch)
    if step % 10 == 0:
        target = params
    train.state = params, target, opt_state, buffer, place, rng.bit_generator.state
    podrun.report(step, loss=loss, reward=buffer["reward"].mean())

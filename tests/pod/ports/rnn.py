"""A recurrent network of Equinox, which tells spirals that turn left from those that turn right."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

STEPS, BATCH_SIZE, EXAMPLES = 60, 32, 640


def spirals(key):
    t = jnp.linspace(0, 2 * math.pi, 16)
    offset = jax.random.uniform(key, (EXAMPLES, 1), maxval=2 * math.pi)
    left = jnp.arange(EXAMPLES)[:, None] % 2
    x = jnp.stack([jnp.sin(t + offset) * (2 * left - 1), jnp.cos(t + offset)], axis=-1) / (1 + t)[:, None]
    return x, left.astype(jnp.float32)


class RNN(eqx.Module):
    hidden_size: int
    cell: eqx.nn.GRUCell
    linear: eqx.nn.Linear

    def __init__(self, hidden_size, *, key):
        cell, linear = jax.random.split(key)
        self.hidden_size = hidden_size
        self.cell = eqx.nn.GRUCell(2, hidden_size, key=cell)
        self.linear = eqx.nn.Linear(hidden_size, 1, key=linear)

    def __call__(self, x):
        hidden, _ = jax.lax.scan(lambda h, x: (self.cell(x, h), None), jnp.zeros(self.hidden_size), x)
        return self.linear(hidden)


@eqx.filter_value_and_grad
def compute_loss(model, x, y):
    return optax.sigmoid_binary_cross_entropy(jax.vmap(model)(x), y).mean()


@eqx.filter_jit
def make_step(model, opt_state, x, y):
    loss, gradients = compute_loss(model, x, y)
    updates, opt_state = optim.update(gradients, opt_state, eqx.filter(model, eqx.is_array))
    return loss, eqx.apply_updates(model, updates), opt_state


def batches_of(arrays, key):
    while True:
        key, now = jax.random.split(key)
        for rows in jax.random.permutation(now, EXAMPLES).reshape(-1, BATCH_SIZE):
            yield tuple(array[rows] for array in arrays)


data_key, model_key, batch_key = jax.random.split(jax.random.key(5678), 3)
arrays = spirals(data_key)
model = RNN(16, key=model_key)
optim = optax.adam(1e-2)
opt_state = optim.init(eqx.filter(model, eqx.is_array))

for step, (x, y) in zip(range(1, STEPS + 1), batches_of(arrays, batch_key), strict=False):
    loss, model, opt_state = make_step(model, opt_state, x, y)
    print(f"step={step}, loss={loss.item()}")

"""A GAN of Equinox: two networks with batch norm, two optimizers, and a random key that goes from step to step."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

STEPS, BATCH_SIZE, LATENT = 40, 32, 8


class Network(eqx.Module):
    hidden: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, inputs, outputs, key):
        first, second = jax.random.split(key)
        self.hidden = eqx.nn.Linear(inputs, 32, key=first)
        self.norm = eqx.nn.BatchNorm(32, axis_name="batch", mode="batch")
        self.out = eqx.nn.Linear(32, outputs, key=second)

    def __call__(self, x, state):
        x, state = self.norm(self.hidden(x), state)
        return self.out(jax.nn.leaky_relu(x)), state


def apply(network, x, state):
    return jax.vmap(network, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)


def cross_entropy(logits, label):
    return optax.sigmoid_binary_cross_entropy(logits, jnp.full_like(logits, label)).mean()


@eqx.filter_value_and_grad(has_aux=True)
def critic_loss(critic, generator, real, states, noise):
    fake, generator_state = apply(generator, noise, states[0])
    of_fake, critic_state = apply(critic, fake, states[1])
    of_real, critic_state = apply(critic, real, critic_state)
    return (cross_entropy(of_fake, 0.0) + cross_entropy(of_real, 1.0)) / 2, (generator_state, critic_state)


@eqx.filter_value_and_grad(has_aux=True)
def generator_loss(generator, critic, states, noise):
    fake, generator_state = apply(generator, noise, states[0])
    of_fake, critic_state = apply(critic, fake, states[1])
    return cross_entropy(of_fake, 1.0), (generator_state, critic_state)


@eqx.filter_jit
def step_critic(critic, generator, opt_state, states, real, key):
    key, now = jax.random.split(key)
    noise = jax.random.normal(now, (BATCH_SIZE, LATENT))
    (loss, states), gradients = critic_loss(critic, generator, real, states, noise)
    updates, opt_state = critic_optim.update(gradients, opt_state)
    return loss, eqx.apply_updates(critic, updates), opt_state, states, key


@eqx.filter_jit
def step_generator(generator, critic, opt_state, states, key):
    key, now = jax.random.split(key)
    noise = jax.random.normal(now, (BATCH_SIZE, LATENT))
    (loss, states), gradients = generator_loss(generator, critic, states, noise)
    updates, opt_state = generator_optim.update(gradients, opt_state)
    return loss, eqx.apply_updates(generator, updates), opt_state, states, key


angles = np.linspace(0, 2 * np.pi, 512, endpoint=False)
ring = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
key, generator_key, critic_key = jax.random.split(jax.random.key(2003), 3)
generator, generator_state = eqx.nn.make_with_state(Network)(LATENT, 2, generator_key)
critic, critic_state = eqx.nn.make_with_state(Network)(2, 1, critic_key)
states = generator_state, critic_state
generator_optim, critic_optim = optax.adam(2e-3, b1=0.5), optax.adam(2e-3, b1=0.5)
generator_opt = generator_optim.init(eqx.filter(generator, eqx.is_inexact_array))
critic_opt = critic_optim.init(eqx.filter(critic, eqx.is_inexact_array))
rows = np.random.default_rng(0)

for step in range(1, STEPS + 1):
    real = ring[rows.choice(len(ring), BATCH_SIZE)]
    of_critic, critic, critic_opt, states, key = step_critic(critic, generator, critic_opt, states, real, key)
    of_generator, generator, generator_opt, states, key = step_generator(generator, critic, generator_opt, states, key)
    print(f"step {step}: critic {of_critic:.4f}, generator {of_generator:.4f}")

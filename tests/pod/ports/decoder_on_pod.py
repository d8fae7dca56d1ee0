"""A decoder of flax linen in the manner of nanodo: a mesh, a sharded TrainState, and batches by grain's loader."""

import functools

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import podrun

STEPS, BATCH_SIZE, LENGTH, WIDTH, VOCABULARY = 40, 8, 16, 32, 64


class Decoder(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        split = functools.partial(nn.with_partitioning, nn.initializers.normal(0.02))
        embed = nn.Embed(VOCABULARY, WIDTH, embedding_init=split((None, "data")))
        x = embed(tokens) + self.param("positions", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        x += nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=nn.make_causal_mask(tokens))
        x += nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH, kernel_init=split((None, "data")))(nn.LayerNorm()(x))))
        return embed.attend(nn.LayerNorm()(x))


class Sentences:
    """Each counts up from a random number, with a random stride."""

    def __repr__(self):
        return "Sentences()"

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        start, stride = np.random.default_rng(index).integers(1, VOCABULARY, 2)
        return np.int32((start + stride * np.arange(LENGTH + 1)) % VOCABULARY)


def train_step(state, tokens):
    tokens = jax.lax.with_sharding_constraint(tokens, NamedSharding(mesh, P("data")))

    def loss_of(params):
        logits = state.apply_fn({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def init():
    model = Decoder()
    params = model.init(jax.random.key(42), jnp.zeros((1, LENGTH), jnp.int32))["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(3e-3))


podrun.init()
mesh = Mesh(jax.devices(), ("data",))
shardings = nn.get_sharding(jax.eval_shape(init), mesh)
state = jax.jit(init, out_shardings=shardings)()
whole = NamedSharding(mesh, P())
step_fn = jax.jit(train_step, in_shardings=(shardings, whole), out_shardings=(shardings, whole), donate_argnums=0)

sampler = grain.IndexSampler(4096, grain.NoSharding(), shuffle=True, seed=1234)
loader = grain.DataLoader(
    data_source=Sentences(), sampler=sampler, operations=[grain.Batch(BATCH_SIZE)], worker_count=0
)
train_iter = iter(loader)

train = podrun.steps(STEPS, state, save_every=10, iterator=train_iter)
for step in train:
    train.state, loss = step_fn(train.state, next(train_iter))
    podrun.report(step, loss=loss)

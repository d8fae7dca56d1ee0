"""Digits by a convolutional network of flax NNX with dropout and batch norm, evaluated after each epoch."""

import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

EPOCHS, BATCH_SIZE = 3, 64


class CNN(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(1, 8, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.025, rngs=rngs)
        self.out = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm(self.dropout(self.conv(x))))
        x = nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))
        return self.out(x.reshape(len(x), -1))


def loss_of(model, batch):
    logits = model(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), logits


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, logits), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])
    optimizer.update(model, gradients)


@nnx.jit
def eval_step(model, metrics, batch):
    loss, logits = loss_of(model, batch)
    metrics.update(loss=loss, logits=logits, labels=batch["label"])


def batches_of(examples, generator=None):
    order = np.arange(len(examples["label"])) if generator is None else generator.permutation(len(examples["label"]))
    for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        yield {name: values[order[start : start + BATCH_SIZE]] for name, values in examples.items()}


images, labels = load_digits(return_X_y=True)
data = {"image": np.float32(images / 16).reshape(-1, 8, 8, 1), "label": np.int32(labels)}
examples, held = ({name: values[part] for name, values in data.items()} for part in (slice(1024), slice(1024, None)))

model = CNN(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.1, 0.9), wrt=nnx.Param)
metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
generator = np.random.default_rng(0)

for epoch in range(1, EPOCHS + 1):
    model.train()
    for batch in batches_of(examples, generator):
        train_step(model, optimizer, metrics, batch)
    print(f"epoch {epoch}: train", {name: float(value) for name, value in metrics.compute().items()})
    metrics.reset()
    model.eval()
    for batch in batches_of(held):
        eval_step(model, metrics, batch)
    print(f"epoch {epoch}: test", {name: float(value) for name, value in metrics.compute().items()})
    metrics.reset()

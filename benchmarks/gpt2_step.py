"""Measure a training step of GPT-2 on this machine's device, such as one GPU: podrun's against plain JAX and PyTorch.

    python benchmarks/gpt2_step.py [--layers 12] [--width 768] [--context 1024] [--batch 20] [--vocabulary 50257] [--rounds 5]
                                   [--steps 20] [--precision bfloat16] [--torch PYTHON]

Each way is a process of its own, and they take turns, block by block. All train GPT-2 with AdamW and clipping by the norm,
matrices in `--precision`, parameters and moments in float32, on one batch that stays on the device:

    podrun      the step as a job of podrun runs it, with all that `auto` chooses for the device
    decoder     the same model as `model: decoder`
    pieces      podrun's with the loss in pieces of 64 MiB, as it is computed elsewhere than on GPUs
    by hand     the same in plain JAX with optax, a scan over stacked layers except on GPUs, and all logits at once
    torch       torch.compile, autocast and fused AdamW, by PYTHON, which has torch; without --torch it is left out

Printed: milliseconds per step of each, and the median over rounds of the ratio of times to podrun's (above 1: podrun is
faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

WAYS = ("podrun", "decoder", "pieces", "by hand")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"layers": 12, "width": 768, "context": 1024, "batch": 20, "vocabulary": 50257}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps per block")
    parser.add_argument("--precision", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--torch", metavar="PYTHON")
    arguments = parser.parse_args()
    from setting import print_setting

    print_setting()
    sizes = {name: vars(arguments)[name] for name in ("layers", "width", "context", "batch", "vocabulary", "precision")}
    pythons = dict.fromkeys(WAYS, sys.executable) | ({"torch": arguments.torch} if arguments.torch else {})
    workers = {way: start(python, way, sizes) for way, python in pythons.items()}
    try:
        rounds = [
            {way: ask(worker, arguments.steps) for way, worker in workers.items()} for _ in range(arguments.rounds + 1)
        ][1:]  # the first compiles
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    print(f"{'':<9}{'ms a step':>10}{'ratio':>8}")
    for way in workers:
        milliseconds = statistics.median(times[way] for times in rounds) * 1e3
        ratio = statistics.median(times[way] / times["podrun"] for times in rounds)
        print(f"{way:<9}{milliseconds:>10.2f}{ratio:>8.3f}", flush=True)


def start(python: str, way: str, sizes: dict[str, Any]) -> subprocess.Popen[str]:
    # All processes are on the device at the same time: none may take most of its memory at once.
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    command = [python, __file__, "worker", way, json.dumps(sizes)]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen[str], steps: int) -> float:
    """Return the seconds of a step, as a worker measures them over `steps` steps."""
    assert worker.stdin and worker.stdout
    worker.stdin.write(f"{steps}\n")
    worker.stdin.flush()
    answer = worker.stdout.readline()
    if not answer:
        raise SystemExit("a worker failed; see its messages above")
    return float(answer)


# --- the measured processes -----------------------------------------------------------------------------------------


def worker(way: str, sizes: dict[str, Any]) -> None:
    step = {"torch": torch_step, "by hand": plain_step}.get(way, partial(podrun_step, way))
    run = step(**sizes)
    while line := sys.stdin.readline():
        began = time.perf_counter()
        run(int(line))
        print((time.perf_counter() - began) / int(line), flush=True)


def podrun_step(
    way: str, layers: int, width: int, context: int, batch: int, vocabulary: int, precision: str
) -> Callable[[int], None]:
    """Return a function that runs so many steps of podrun's, and waits for the last."""
    import jax
    import numpy as np

    from podrun.runtime.config import Config
    from podrun.runtime.devices import Devices
    from podrun.runtime.inspect_job.look import step_batch
    from podrun.runtime.models.attention import resolve
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.storage.bucket_data import load_data
    from podrun.runtime.tasks import make_task

    model: dict[str, Any] = {"layers": layers, "width": width, "heads": max(1, width // 64), "context": context}
    if way == "decoder":
        as_gpt2 = {"mlp": "gelu", "norm": "layer", "bias": "all", "positions": "learned", "vocabulary": vocabulary}
        model = {"name": "decoder", **model, **as_gpt2}
    tokens = np.random.default_rng(0).integers(0, vocabulary, 4 * (context + 1) * batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.bin")
        tokens.astype(np.uint16).tofile(path)
        config = Config.model_validate(
            {
                "model": model,
                "data": {"name": "tokens", "path": str(path), "vocabulary": vocabulary},
                "optimizer": {"name": "adamw", "learning_rate": 6e-4, "weight_decay": 0.1, "clip_norm": 1.0},
                "precision": precision,
                "parallel": "single",
                "steps": 1_000_000,
                "batch_size": batch,
                "eval": {"every": 0},
            }
        )
        config, _ = resolve(config, Devices.here())
        data = load_data(config)
        task = make_task(config, data)
        if way == "pieces":
            task.memory = None
        optimizer, schedule = make_optimizer(config, config.total_steps(data.train.size), task.stacked)
        strategy = make_strategy(config, task, optimizer, schedule)
        shapes = step_batch(config, data, strategy)
    rows = {name: tokens[: np.prod(x.shape)].reshape(x.shape).astype(x.dtype) for name, x in shapes.items()}
    placed = strategy.shard(rows)
    state = strategy.init()

    def run(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, metrics = strategy.step(state, placed)
        jax.block_until_ready((state, metrics))

    return run


def plain_step(
    layers: int, width: int, context: int, batch: int, vocabulary: int, precision: str
) -> Callable[[int], None]:
    """Return a function that runs so many steps of a loop by hand in JAX, and waits for the last."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    random, heads = np.random.default_rng(0), max(1, width // 64)

    def normal(*shape: int) -> np.ndarray:
        return random.normal(0, 0.02, shape).astype(np.float32)

    def norm_of(*shape: int) -> dict[str, np.ndarray]:
        return {"scale": np.ones(shape, np.float32), "bias": np.zeros(shape, np.float32)}

    def dense(inputs: int, outputs: int) -> dict[str, np.ndarray]:
        return {"kernel": normal(layers, inputs, outputs), "bias": np.zeros((layers, outputs), np.float32)}

    blocks = {
        "first": norm_of(layers, width),
        "qkv": dense(width, 3 * width),
        "out": dense(width, width),
        "second": norm_of(layers, width),
        "up": dense(width, 4 * width),
        "down": dense(4 * width, width),
    }
    params: Any = {
        "tokens": normal(vocabulary, width),
        "positions": normal(context, width),
        "blocks": blocks,
        "last": norm_of(width),
    }
    dtype = jnp.dtype(precision)

    def normed(x: Any, p: Any) -> Any:
        wide = x.astype(jnp.float32)
        mean, square = wide.mean(-1, keepdims=True), (wide**2).mean(-1, keepdims=True)
        return ((wide - mean) * jax.lax.rsqrt(square - mean**2 + 1e-5) * p["scale"] + p["bias"]).astype(dtype)

    def product(x: Any, p: Any) -> Any:
        return x @ p["kernel"].astype(dtype) + p["bias"].astype(dtype)

    def block(x: Any, p: Any) -> tuple[Any, None]:
        q, k, v = jnp.split(product(normed(x, p["first"]), p["qkv"]).reshape(*x.shape[:2], 3 * heads, -1), 3, 2)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        x = x + product(mixed, p["out"])
        return x + product(jax.nn.gelu(product(normed(x, p["second"]), p["up"])), p["down"]), None

    def loss_of(params: Any, rows: Any) -> Any:
        table = params["tokens"].astype(dtype)
        x = table[rows[:, :-1]] + params["positions"].astype(dtype)
        x, _ = jax.lax.scan(block, x, params["blocks"], unroll=jax.default_backend() == "gpu")
        logits = (normed(x, params["last"]) @ table.T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, rows[:, 1:]).mean()

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(6e-4, weight_decay=0.1))

    def step(params: Any, moments: Any, rows: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, rows)
        updates, moments = optimizer.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    params = jax.tree.map(jnp.asarray, params)
    moments = optimizer.init(params)
    rows = jnp.asarray(random.integers(0, vocabulary, (batch, context + 1)), jnp.int32)

    def run(steps: int) -> None:
        nonlocal params, moments
        for _ in range(steps):
            params, moments, loss = compiled(params, moments, rows)
        jax.block_until_ready(loss)

    return run


def torch_step(
    layers: int, width: int, context: int, batch: int, vocabulary: int, precision: str
) -> Callable[[int], None]:
    """Return a function that runs so many steps of PyTorch's, and waits for the last."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = max(1, width // 64)
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            heads = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))

    class GPT2(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x: Any, y: Any) -> Any:
            hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            logits = self.head(self.norm(self.blocks(hidden)))
            return functional.cross_entropy(logits.view(-1, vocabulary), y.reshape(-1))

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    torch.set_float32_matmul_precision("high")
    model = GPT2().to(device)
    loss_of = torch.compile(model) if on_gpu else model  # on CPUs it needs a C++ compiler
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1, fused=on_gpu)
    rows = torch.randint(0, vocabulary, (batch, context + 1), device=device)
    x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def run(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
                loss = loss_of(x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        float(loss.detach())

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], json.loads(sys.argv[3]))
    else:
        main()

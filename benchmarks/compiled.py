"""Compile the step of a model for a slice by podrun and by MaxText, and compare what one compiler makes of them.

    python benchmarks/compiled.py [--slice v5e-16] [--model gpt2|llama-1b|llama-8b|tiny] [--context 1024] [--batch 5]
                                  [--peer FOLDER [--python PYTHON]]

`gpt2` has 124M parameters, the others the sizes of Llama 3.2 1B and 3.1 8B; `tiny` is for a test. podrun's `decoder` keeps
only the input of each layer (`remat: block`), as MaxText does by default. Both train with AdamW in bfloat16, parameters and
moments in float32, `--batch` examples on each device, without dropout.
Without `--peer` this Python compiles podrun's steps alone; for TPUs it needs libtpu (docs/compile.md). With it MaxText and
podrun are installed into an environment in FOLDER, unless they are there already (3 GB to download), and all steps are
compiled in it. PYTHON, at least 3.12, makes the environment; by default the newest of pyenv. MaxText runs by its own command
and prints its figures itself. What its devices send each other podrun reads from the program that the compiler has written.

Printed, for one device: GiB of the arguments (state and batch) and of temporaries; GiB of the arrays that the collectives of
a step work on; GFLOP of a step, as the compiler counts them, which counts the body of a loop once, and as each project
counts those of its model.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setting import ROOT, print_setting

MAXTEXT = "0.2.5"
VOCABULARY = 50304
"""Token ids of gpt2."""
LLAMA = {
    "kv_heads": 8,
    "mlp": "swiglu",
    "norm": "rms",
    "norm_epsilon": 1e-5,
    "rope": {"theta": 500_000},
    "vocabulary": 128_256,
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "mlp": "gelu",
        "norm": "layer",
        "bias": "all",
        "positions": "learned",
        "vocabulary": VOCABULARY,
    },
    "tiny": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 256},
    "llama-1b": {"layers": 16, "width": 2048, "heads": 32, "mlp_width": 8192, "tied_head": True, **LLAMA},
    "llama-8b": {"layers": 32, "width": 4096, "heads": 32, "mlp_width": 14336, "tied_head": False, **LLAMA},
}
"""Keys of podrun's `decoder`."""
COMPILE = "maxtext.trainers.pre_train.train_compile"
ALONE = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
"""Environment of a process that only compiles."""
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", default="v5e-16")
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=5)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--python", type=Path)
    arguments = parser.parse_args()
    print_setting()
    python = Path(sys.executable)
    if arguments.peer:
        python = make_environment(arguments.peer.absolute(), arguments.python)
    print(f"compiler: {ask(python, 'versions')}\n", flush=True)
    devices = int(ask(python, "devices", arguments.slice))
    print(
        f"{arguments.slice}: {arguments.model}, {arguments.batch} x {arguments.context} tokens a device\n\n"
        f"{'':<38}{'arguments':>10}{'temporaries':>13}{'sent':>8}{'compiler':>11}{'model':>9}",
        flush=True,
    )
    for name, step in steps(python, arguments, devices):
        print(
            f"{name:<38}{step['arguments'] / GIB:>10.2f}{step['temporaries'] / GIB:>13.2f}"
            f"{sum(step['sent'].values()) / GIB:>8.2f}{step['flops'] / 1e9:>11.1f}{step['model'] / 1e9:>9.1f}\n"
            f"    {in_words(step)}",
            flush=True,
        )


def steps(python: Path, arguments: argparse.Namespace, devices: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each step, and its figures."""
    is_small = not arguments.model.startswith("llama")  # the others do not fit whole
    decoder = {"name": "decoder", **MODELS[arguments.model], "remat": "block"}
    layouts: list[tuple[str, dict[str, Any], int]] = [("decoder, remat block, ", decoder, devices)]
    if is_small:
        gpt2 = {"name": "gpt2", **{key: decoder[key] for key in ("layers", "width", "heads")}}
        layouts = [("gpt2, remat none, ", gpt2, 1), ("decoder, remat block, ", decoder, 1), *layouts]
    for name, model, fsdp in layouts:
        job = json.dumps(
            {
                "slice": arguments.slice,
                "fsdp": fsdp,
                "batch": arguments.batch,
                "model": model,
                "context": arguments.context,
            }
        )
        yield (
            f"podrun, {name}{f'fsdp {fsdp}' if fsdp > 1 else f'data {devices}'}",
            json.loads(ask(python, "podrun", job)),
        )
    if not arguments.peer:
        return
    for remat in ("full", "minimal") if is_small else ("full",):
        yield f"MaxText, fsdp {devices}, remat {remat}", compile_peer(python, arguments, [f"remat_policy={remat}"])
    if is_small:
        layout = [f"ici_data_parallelism={devices}", "ici_fsdp_parallelism=1"]
        yield f"MaxText, data {devices}, remat full", compile_peer(python, arguments, layout)


def in_words(step: dict[str, Any]) -> str:
    """Return the collectives of a step."""
    parts = [f"{step['count'][kind]} {kind} of {sent / GIB:.2f} GiB" for kind, sent in step["sent"].items()]
    unknown = (
        f"; the turns of {step['unknown_loops']} loops are unknown, so they count once" if step["unknown_loops"] else ""
    )
    return (", ".join(parts) or "nothing is sent") + unknown


# --- the peer -------------------------------------------------------------------------------------------------------


def make_environment(folder: Path, python: Path | None) -> Path:
    """Install MaxText, this podrun and the libtpu that their JAX asks for, once; return the interpreter."""
    inside, installed = folder / "bin" / "python", folder / "installed"
    wanted = [f"maxtext[tpu]=={MAXTEXT}", "--editable", f"{ROOT}[tpu]"]
    if not installed.exists() or installed.read_text() != " ".join(wanted):
        print(f"installing MaxText {MAXTEXT} and podrun into {folder} ...", flush=True)
        subprocess.run([python or newest_python(), "-m", "venv", folder], check=True)
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True)
        installed.write_text(" ".join(wanted))
    return inside


def newest_python() -> Path:
    """Return the newest Python of pyenv. MaxText needs 3.12."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pythons = [path for path in folder.glob("3.*/bin/python") if re.fullmatch(r"3\.\d+\.\d+", path.parts[-3])]
    newest = max(pythons, key=lambda path: [int(n) for n in path.parts[-3].split(".")], default=None)
    if newest is None:
        raise SystemExit(f"no Python in {folder}; name one of at least 3.12 with --python")
    return newest


def peer_model(model: str, context: int) -> list[str]:
    """Return MaxText's own words for a model."""
    keys = MODELS[model]
    words = [
        "model_name=default",
        f"base_emb_dim={keys['width']}",
        f"base_num_query_heads={keys['heads']}",
        f"base_num_kv_heads={keys.get('kv_heads', keys['heads'])}",
        f"head_dim={keys['width'] // keys['heads']}",
        f"base_mlp_dim={keys.get('mlp_width', 4 * keys['width'])}",
        f"base_num_decoder_layers={keys['layers']}",
        f"vocab_size={keys['vocabulary']}",
        f"logits_via_embedding={str(keys.get('tied_head', True)).lower()}",
    ]
    if model == "gpt2":
        return [
            *words,
            "decoder_block=gpt3",
            "mlp_activations=['gelu']",
            "fused_qkv=true",
            f"trainable_position_size={context}",
        ]
    return [*words, "decoder_block=llama2", "mlp_activations=['silu','linear']", "rope_max_timescale=500000"]


def compile_peer(python: Path, arguments: argparse.Namespace, options: list[str]) -> dict[str, Any]:
    """Compile MaxText's step by its own command."""
    slice, context = arguments.slice, arguments.context
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"compile_topology={slice}",
            "compile_topology_num_slices=1",
            *peer_model(arguments.model, context),
            f"max_target_length={context}",
            f"per_device_batch_size={arguments.batch}",
            "dtype=bfloat16",
            "opt_type=adamw",
            "dataset_type=synthetic",
            "enable_checkpointing=false",
            "run_name=compiled",
            f"base_output_directory={folder}",
            *options,
        ]
        config = python.parents[1].glob("lib/python3.*/site-packages/maxtext/configs/base.yml")
        command = [python, "-m", COMPILE, next(config), *words]
        env = {**os.environ, **ALONE, "XLA_FLAGS": f"--xla_dump_to={folder}/hlo --xla_dump_hlo_as_long_text"}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"MaxText failed:\n{(done.stdout + done.stderr)[-3000:]}")
        program = max(Path(folder, "hlo").glob("*jit_train_step*after_optimizations.txt"), key=os.path.getsize)
        sent = json.loads(ask(python, "sent", slice, os.fspath(program)))
        memory = re.search(r"^Memory analysis: (.*)$", done.stdout, re.MULTILINE)
        cost = re.search(r"^Cost analysis: .*'flops': ([\d.e+]+)", done.stdout, re.MULTILINE)
        assert memory and cost, done.stdout[-3000:]
        bytes_of = {name: int(n) for name, n in re.findall(r"(\w+)_size_in_bytes=(\d+)", memory[1])}
        return {
            "arguments": bytes_of["argument"],
            "temporaries": bytes_of["temp"],
            "flops": float(cost[1]),
            "model": float(ask(python, "peer_flops", *map(os.fspath, command[3:]))),
            **sent,
        }


# --- processes with the compiler ------------------------------------------------------------------------------------


def ask(python: Path, question: str, *words: str) -> str:
    """Return the last line that a function of this file prints, in a process of the interpreter."""
    command = [python, __file__, "answer", question, *words]
    done = subprocess.run(command, env={**os.environ, **ALONE}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{question} failed; see its messages above")
    return done.stdout.splitlines()[-1]


def answer(question: str, *words: str) -> None:
    answers = {
        "versions": versions,
        "devices": devices,
        "podrun": compile_podrun,
        "sent": sent_by,
        "peer_flops": peer_flops,
    }
    print(answers[question](*words))


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    def of(name: str) -> str:
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            return f"no {name}"

    return ", ".join(map(of, ("jax", "libtpu", "flax", "maxtext")))


def devices(slice: str) -> str:
    from podrun.launcher.pod.slices import parse_slice

    return str(parse_slice(slice).devices)


def pod_of(slice: str) -> Any:
    """Return the devices of the slice; for CPU slices virtual ones of this process."""
    import jax

    from podrun.launcher.pod.slices import parse_slice
    from podrun.launcher.pod.target import target_of
    from podrun.runtime.compiler import devices_of
    from podrun.runtime.devices import Devices

    jax.config.update("jax_threefry_partitionable", True)
    jax.config.update("jax_enable_compilation_cache", False)  # programs from the cache have no memory analysis
    shape = parse_slice(slice)
    if target := target_of(shape):
        return devices_of(target)
    jax.config.update("jax_num_cpu_devices", shape.devices)
    return Devices.here()


def compile_podrun(job: str) -> str:
    """Compile podrun's step, and return its figures as JSON."""
    import jax
    import numpy as np

    from podrun.runtime.config import Config
    from podrun.runtime.data import load_dataset
    from podrun.runtime.data.pipeline import batch_shapes
    from podrun.runtime.inspect_job.compiled import compile_step
    from podrun.runtime.measure.flops import step_flops
    from podrun.runtime.models.attention import resolve
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.tasks import make_task
    from podrun.runtime.tasks.base import first_parameters

    sizes = json.loads(job)
    pod = pod_of(sizes["slice"])
    with tempfile.TemporaryDirectory() as folder:
        tokens = Path(folder, "tokens.bin")
        np.zeros(sizes["context"] * 10, np.uint32).tofile(tokens)
        model = sizes["model"]
        config = Config.model_validate(
            {
                "task": "language_model",
                "model": {**model, "context": sizes["context"]},
                "data": {
                    "name": "tokens",
                    "path": tokens,
                    "validation_path": tokens,
                    "vocabulary": model.get("vocabulary", VOCABULARY),
                    "dtype": "uint32",
                },
                "optimizer": "adamw",
                "precision": "bfloat16",
                "batch_size": sizes["batch"] * pod.count,
                "steps": 10,
                "parallel": {"name": "jit", **({"mesh": {"fsdp": sizes["fsdp"]}} if sizes["fsdp"] > 1 else {})},
            }
        )
        config, _ = resolve(config, pod)
        data = load_dataset(config)
        task = make_task(config, data)
        strategy = make_strategy(config, task, *make_optimizer(config, config.steps), pod)
        shapes = batch_shapes(data.train, config.batch_size)
        batch = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in shapes.items()}
        initial = jax.eval_shape(lambda key: first_parameters(task, key), jax.random.key(0))
        flops = step_flops(task, initial, batch).work / pod.count
        step = compile_step(strategy, strategy.lowered(batch))
        if step.program is None or step.memory is None:
            raise SystemExit(step.too_large)
        return json.dumps(
            {
                "arguments": step.memory.arguments,
                "temporaries": step.memory.temporaries,
                "flops": step.program.cost_analysis()["flops"],
                "model": flops,
                "unknown_loops": step.unknown_loops,
                **summed(step.traffic),
            }
        )


def sent_by(slice: str, program: str) -> str:
    """Return what the devices of a program in XLA's text form send each other, as JSON."""
    import numpy as np

    from podrun.runtime.inspect_job import hlo
    from podrun.runtime.inspect_job.loops import unknown_loops
    from podrun.runtime.inspect_job.traffic import PodMesh, traffic

    mesh = PodMesh(("device",), np.array(pod_of(slice).all))
    text = hlo.read(Path(program).read_text())
    return json.dumps({**summed(traffic(text, mesh)), "unknown_loops": unknown_loops(text)})


def summed(traffic: Any) -> dict[str, dict[str, int]]:
    """Return the number of collectives and their bytes, by kind."""
    count, sent = Counter[str](), Counter[str]()
    for one in traffic:
        count[one.kind] += one.count
        sent[one.kind] += one.bytes
    return {"count": count, "sent": sent}


def peer_flops(*words: str) -> str:
    """Return the FLOPs of a device that MaxText itself counts for its model's step."""
    from maxtext.configs import pyconfig
    from maxtext.utils.maxtext_utils import calculate_tflops_training_per_device

    total, *_ = calculate_tflops_training_per_device(pyconfig.initialize(["", *words]), log=False)
    return str(total * 1e12)


if __name__ == "__main__":
    answer(*sys.argv[2:]) if sys.argv[1:2] == ["answer"] else main()

"""`podrun generate`: continue prompts by a trained model, in one process of the runtime on this machine and its devices."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.queries import GenerateAnswer, GenerateQuery, SamplingFields

from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..plan.base_env import base_env
from ..pod.pod import Pod
from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.printable import printable
from ..view.waiting import waiting
from .model_source import ModelSource, Step, model_here

_MOST_PROMPTS = 10_000
_GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GenerateRequest:
    """Command line of `podrun generate`.

    Attributes:
        target: where the model is, as `model_here` takes it.
        prompt: a prompt; `-` reads it from stdin.
        batch: a file with a prompt on each line.
        sampling: temperature, top_k, top_p and min_p.
        stops: texts that end a continuation.
        tokenizer: a tokenizer.json, for a model that has none.
        json: print a line of JSON for each prompt.
        where: devices of this machine; without any, the CPU as one device.
    """

    target: str | None
    step: Step
    prompt: str | None
    batch: Path | None
    tokens: int | None
    sampling: SamplingFields
    seed: int
    stops: tuple[str, ...]
    tokenizer: Path | None
    json: bool
    where: PodRequest = field(default_factory=PodRequest)


def generate(request: GenerateRequest) -> int:
    """Print the texts. Return 0; 1 if the process failed. Raises UserError; UnavailableError if a bucket is unreachable."""
    prompts = _prompts(request)
    pod = _devices(request.where)
    with model_here(request.target, request.step) as source:
        return _generate(request, prompts, source, pod)


def _devices(where: PodRequest) -> Pod | None:
    """Return the machine whose devices generate; None if no options name one. Raises UserError for several machines."""
    if not where.names_pod:
        return None
    pod = find_pod(where)
    if len(pod.hosts) > 1:
        raise UserError(
            f"--slice {pod.slice.name} has {len(pod.hosts)} hosts, and podrun generate uses the devices of this machine: "
            "give a slice of one host"
        )
    return pod


def environment_of(pod: Pod) -> dict[str, str]:
    """Return the environment of a process that uses a pod's devices: of more GPUs only the first are opened."""
    ids = range(pod.slice.devices_per_host)
    env = {**base_env(pod, ids), **pod.env}
    if pod.platform == "cuda":
        given = env.get(_GPUS, os.environ.get(_GPUS, ",".join(map(str, ids))))
        env[_GPUS] = ",".join(given.split(",")[: len(ids)])
    return env


def _prompts(request: GenerateRequest) -> list[str]:
    if (request.prompt is None) == (request.batch is None):
        raise UserError(
            "give either --prompt TEXT (`-` reads it from stdin) or --batch FILE with a prompt on each line"
        )
    if "" in request.stops:
        raise UserError("--stop: an empty text is the end of every text; leave it out")
    if request.prompt is not None:
        given = sys.stdin.buffer.read() if request.prompt == "-" else os.fsencode(request.prompt)
        try:
            return [given.decode()]
        except UnicodeDecodeError:
            raise UserError("--prompt: the text is not UTF-8; convert it, for example with iconv") from None
    try:
        text = request.batch.read_text(encoding="utf-8") if request.batch else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"--batch {request.batch} cannot be read: {reason}") from None
    lines = text.removesuffix("\n").split("\n") if text else []
    if not 0 < len(lines) <= _MOST_PROMPTS:
        raise UserError(
            f"--batch {request.batch} has {len(lines)} prompts; give from 1 to {_MOST_PROMPTS}, one on each line"
        )
    return lines


def _generate(request: GenerateRequest, prompts: list[str], source: ModelSource, pod: Pod | None) -> int:
    query: GenerateQuery = {
        "folder": str(source.folder),
        "step": source.step,
        "prompts": prompts,
        "tokens": request.tokens,
        "sampling": request.sampling,
        "seed": request.seed,
        "stops": list(request.stops),
        "tokenizer": str(request.tokenizer.absolute()) if request.tokenizer else None,
        "devices": pod.slice.devices_per_host if pod else None,
    }
    environment = {**query_environment({}), **(environment_of(pod) if pod else {})}
    process = QueryProcess(source.python, "podrun.runtime.generate", environment, "wrote the text", source.cwd)
    is_streamed = request.batch is None and not request.json
    output: _Stream | _JsonLines = _Stream(prompts[0]) if is_streamed else _JsonLines(prompts)
    try:
        with ExitStack() as wait:
            change = wait.enter_context(waiting(f"reading the model of {source.folder}"))

            def on_part(line: str) -> None:
                number, text = json.loads(line)
                if is_streamed or sys.stdout.isatty():
                    wait.close()
                output.add(number, text)
                change(f"{output.ended:,} of {len(prompts):,} texts")

            answer = GenerateAnswer(**json.loads(source.named(process.ask(query, on_part))))
    except QueryError as error:
        print(f"podrun: no text can be written: {error}", file=sys.stderr)
        return ExitCode.FAILED
    if not request.json:
        print(_summary(answer), file=sys.stderr)
    return ExitCode.DONE


class _Stream:
    """Prints a prompt and its continuation while the model writes it."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self.ended = 0

    def add(self, number: int, text: str | None) -> None:
        """Print more of the continuation; None: it has ended."""
        self._print(self._prompt + ("\n" if text is None else text))
        self._prompt = ""
        self.ended += text is None

    def _print(self, text: str) -> None:
        """Print text of a model; on a terminal without control characters."""
        print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)


class _JsonLines:
    """Prints a line of JSON for each prompt, in the order of the prompts, as soon as possible."""

    def __init__(self, prompts: list[str]) -> None:
        self._prompts = prompts
        self._texts = [""] * len(prompts)
        self._has_ended = [False] * len(prompts)
        self.ended = 0

    def add(self, number: int, text: str | None) -> None:
        """Add more of a prompt's continuation; None: it has ended."""
        if text is not None:
            self._texts[number] += text
            return
        self._has_ended[number] = True
        while self.ended < len(self._prompts) and self._has_ended[self.ended]:
            line = {"prompt": self._prompts[self.ended], "text": self._texts[self.ended]}
            print(json.dumps(line), flush=True)  # in ASCII, whatever the encoding of the output
            self.ended += 1


def _summary(answer: GenerateAnswer) -> str:
    line = f"podrun: {answer.written} tokens after {answer.read} of the prompt"
    if answer.seconds > 0 and answer.timed:
        line += f", {answer.timed / answer.seconds:,.0f} tokens/s"
    return f"{line}; {answer.about}"

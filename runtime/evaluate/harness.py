"""Tasks of EleutherAI's lm-evaluation-harness, answered by a trained model.

https://github.com/EleutherAI/lm-evaluation-harness
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ..checkpoint.saved_model import SavedModel, Step, find_checkpoint
from ..contract import UserError
from ..generate.source import load
from ..generate.text import BLOCK, Source, Wish, write
from ..models.generation import Sampling
from ..models.pretrained import is_published
from ..queries import EvaluateAnswer

_LOGITS = 1 << 27
"""Most numbers in the logits of a batch: 512 MiB."""
_RESAMPLED = 1000
"""Samples that the harness draws for the standard error of a metric that is no mean."""
_MOST = 256
"""Tokens of an answer that is written, unless the task says how many."""

_MOST_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks have for this number."""

Request = tuple[tuple[str, str], list[int], list[int]]
"""A context and its continuation: both texts, and the token ids of each."""


def evaluate_tasks(
    folder: Path,
    step: Step,
    tokenizer: Path | None,
    tasks: Sequence[str],
    limit: int | None,
    on_part: Callable[[int, int], None],
) -> EvaluateAnswer:
    """Evaluate the model in a folder by tasks of the harness.

    Args:
        folder: a run's workdir, or a folder as `save_pretrained` of transformers writes it.
        step: step of the checkpoint.
        tokenizer: a tokenizer.json, if the model has none; None: the model's own.
        tasks: names of tasks or groups, or paths of YAML files, each named as its task.
        limit: number of examples of each task; None: all.
        on_part: gets the number of answers that are computed, and of all that the model is asked for at a time.

    Raises:
        UserError: there is no such model or task, or the data of a task cannot be loaded.
    """
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    manager = _manager(tasks)
    names = [Path(task).stem if _is_file(task) else task for task in tasks]
    known = manager.all_tasks
    for typed, name in zip(tasks, names, strict=True):
        if name not in known:
            raise UserError(f"--lm-eval {typed}: {_unknown(typed, name, known)}")
    source, about = load(folder, step, tokenizer)
    try:
        results = simple_evaluate(
            _Model(source, on_part),
            tasks=names,
            limit=limit,
            task_manager=manager,
            bootstrap_iters=_RESAMPLED,
            log_samples=False,
        )
    except OSError as error:  # of `datasets`, whose errors of the network are of this class
        raise UserError(
            f"--lm-eval {','.join(tasks)}: the data of a task cannot be loaded: {_first_line(error)}; tasks download "
            "theirs from huggingface.co, unless it is in the cache already (HF_HOME)"
        ) from error
    counts = results["n-samples"]
    saved = None if is_published(folder) else SavedModel(find_checkpoint(folder, step))
    return EvaluateAnswer(
        about=about,
        step=saved.step if saved else None,
        weights=saved.weights if saved else "params",
        data=f"{', '.join(names)} of lm-eval {version('lm-eval')}",
        is_of_run=False,
        examples=sum(count["effective"] for count in counts.values()),
        tokens=None,
        metrics=_metrics(results["results"]),
    )


def _is_file(task: str) -> bool:
    return task.endswith((".yaml", ".yml"))


def _manager(tasks: Sequence[str]) -> Any:
    """Return the harness's index of tasks, with those of the given files. Raises UserError for a file that is not there."""
    files = [Path(task).expanduser() for task in tasks if _is_file(task)]
    for file in files:
        if not file.is_file():
            raise UserError(
                f"--lm-eval {file}: there is no such file; give the path of a task's YAML file, or its name"
            )
    return TaskManager(include_path=sorted({str(file.absolute().parent) for file in files}) or None)


def _unknown(typed: str, name: str, known: Sequence[str]) -> str:
    if _is_file(typed):
        return f"the file has no task {name!r}; name it as its key `task` says"
    near = difflib.get_close_matches(name, known, 3)
    return f"lm-eval has no such task; {'like it are ' + ', '.join(near) if near else '`lm-eval ls tasks` lists them'}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _metrics(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return `task/metric`, with the name of the harness's filter if it is not the only one: `gsm8k/exact_match,strict`."""
    return {
        f"{task}/{name.removesuffix(',none').replace(',none', '')}": float(value)
        for task, values in results.items()
        for name, value in values.items()
        if isinstance(value, (int, float)) and name not in ("sample_len", "sample_count")
    }


@dataclass(frozen=True)
class _Settings:
    """Settings that texts have in common which are written together."""

    tokens: int
    sampling: Sampling
    stops: tuple[str, ...]

    @classmethod
    def of(cls, given: dict[str, Any]) -> _Settings:
        until = given.get("until") or ()
        stops = (until,) if isinstance(until, str) else tuple(until)
        drawn = given.get("do_sample", given.get("temperature", 0) > 0)
        sampling = Sampling(
            temperature=float(given.get("temperature", 1.0)) if drawn else 0.0,
            top_k=int(given.get("top_k", 0)) if drawn else 0,
            top_p=float(given.get("top_p", 1.0)) if drawn else 1.0,
        )
        most = next((given[name] for name in _MOST_NAMES if name in given), _MOST)
        return cls(int(most), sampling, stops)


class _Model(TemplateLM):
    """A trained model as the harness asks it.

    Args:
        source: the model.
        on_part: see `evaluate_tasks`.
    """

    def __init__(self, source: Source, on_part: Callable[[int, int], None]) -> None:
        super().__init__()
        self._source = source
        self._on_part = on_part
        self._score = jax.jit(partial(_score, source.model))

    @property
    def eot_token_id(self) -> int:
        return min(self._source.ends, default=0)

    @property
    def prefix_token_id(self) -> int:
        return self._source.beginning[-1] if self._source.beginning else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        return ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids: list[int] = self._source.tokenizer.encode(string).tolist()
        return ids if add_special_tokens is False else [*self._source.beginning, *ids]

    def _loglikelihood_tokens(self, requests: Sequence[Request], **_: Any) -> list[tuple[float, bool]]:
        """Return for each request the log-probability of its continuation, and whether each token of it is the likeliest."""
        most, prefix = self._source.context, [self.prefix_token_id]  # a context of spaces alone is empty here
        rows = [_cut(context or prefix, continuation, most) for _, context, continuation in requests]
        answers: dict[int, tuple[float, bool]] = {}
        for batch in self._batches([len(tokens) for tokens, _ in rows]):
            longest = max(len(rows[row][0]) - 1 for row in batch)
            length = min(-(-longest // BLOCK) * BLOCK, self._source.context)  # a model may have no positions beyond it
            tokens = np.zeros((len(batch), length + 1), np.int32)
            counts = np.zeros((len(batch), length), bool)
            for place, row in enumerate(batch):
                given, scored = rows[row]
                tokens[place, : len(given)] = given
                counts[place, len(given) - 1 - scored : len(given) - 1] = True
            with self._source.division.computing() if self._source.division else nullcontext():
                sums, greedy = self._score(self._source.params, tokens, counts)
            for row, total, is_greedy in zip(
                batch, np.asarray(sums).tolist(), np.asarray(greedy).tolist(), strict=True
            ):
                answers[row] = total, is_greedy
            self._on_part(len(answers), len(rows))
        return [answers[row] for row in range(len(rows))]

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield the numbers of the requests of each batch. The longest come first: a lack of memory shows at once."""
        order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        while order:
            size = lengths[order[0]] + BLOCK
            count = max(1, min(64, _LOGITS // (size * max(1, self._source.tokenizer.vocabulary))))
            yield order[:count]
            del order[:count]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[Request] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            (text,) = request.args
            ids = self.tok_encode(text, add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self._source.context, 1):
                context, continuation = make_disjoint_window(window)
                windows.append((("", ""), context, continuation))
                owners.append(number)
        sums = [0.0] * len(requests)
        for owner, (total, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += total
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        texts = [""] * len(requests)
        alike: dict[_Settings, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(_Settings.of(request.args[1]), []).append(number)
        done = 0
        for settings, numbers in alike.items():
            tokens = min(settings.tokens, self._source.context // 2)

            def say(place: int, text: str | None, numbers: list[int] = numbers) -> None:
                nonlocal done
                if text is None:
                    done += 1
                    self._on_part(done, len(requests))
                else:
                    texts[numbers[place]] += text

            prompts = [self._prompt(requests[number].args[0], self._source.context - tokens) for number in numbers]
            write(self._source, prompts, Wish(tokens, settings.sampling, stops=settings.stops), say)
        return texts

    def _prompt(self, text: str, most: int) -> list[int]:
        """Return the token ids of a prompt, of a longer one the last."""
        beginning = list(self._source.beginning)
        ids: list[int] = self._source.tokenizer.encode(text).tolist()
        return [*beginning, *ids[max(0, len(ids) + len(beginning) - most) :]] or [self.prefix_token_id]


def _cut(context: list[int], continuation: list[int], most: int) -> tuple[list[int], int]:
    """Return the last tokens of both together, as many as the model can read, and how many of them are scored."""
    tokens = [*context, *continuation][-(most + 1) :]
    return tokens, min(len(continuation), len(tokens) - 1)


def _score(model: Any, params: Any, tokens: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the log-probabilities of the tokens that count, float32[B], and whether all are the likeliest.

    Args:
        model: the model.
        params: its parameters.
        tokens: int32[B, T + 1]; what follows a text does not change it.
        counts: whether a token, without the first, counts, bool[B, T].
    """
    logits = model(params, tokens[:, :-1]).astype(jnp.float32)
    targets = tokens[:, 1:, None]
    picked = jnp.take_along_axis(logits, targets, -1)[..., 0] - jax.nn.logsumexp(logits, -1)
    likeliest = jnp.argmax(logits, -1) == targets[..., 0]
    return jnp.where(counts, picked, 0).sum(-1), jnp.all(likeliest | ~counts, -1)

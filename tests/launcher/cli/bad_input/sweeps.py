"""Mistakes in a sweep.yaml, and in what it is together with the job and the pod."""

from __future__ import annotations

from .case import Case

_SPACE = "space: {optimizer.learning_rate: {values: [0.001, 0.01]}}\n"
_REST = "metric: min loss\nbudget: {trials: 3}\n"


def _case(name: str, what: str, where: str, remedy: str, text: str, *options: str, also: tuple[str, ...] = ()) -> Case:
    """Return a case whose sweep.yaml has this text. `options`: where it runs, instead of a pod of one host."""
    where_it_runs = options or ("--slice", "cpu-1x1", "--simulate")
    return Case(
        name, what, where, remedy, ("sweep", *where_it_runs, "sweep.yaml"), files={"sweep.yaml": text}, also=also
    )


SWEEPS = [
    Case("no sweep.yaml", "cannot read the sweep", "sweep.yam:", "docs/sweeps.md", ("sweep", "--local", "sweep.yam")),
    _case(
        "unknown key of a sweep",
        "no such key",
        "line 3: metrik:",
        "mean metric?",
        f"job: train.yaml\n{_SPACE}metrik: a\n",
    ),
    _case(
        "several mistakes of a sweep",
        "2 mistakes",
        "line 2: search:",
        "must be 'grid', 'random' or 'optuna'",
        f"job: train.yaml\nsearch: best\n{_SPACE}metric: low loss\n",
        also=("line 4: metric: must be min or max", "sweep.yaml"),
    ),
    _case("no job", "required: the path of a train.yaml", "job:", "or program", f"{_SPACE}{_REST}"),
    _case(
        "a job and a program",
        "as well as program",
        "line 1: job:",
        "remove one",
        f"job: train.yaml\nprogram: [a]\n{_SPACE}{_REST}",
    ),
    _case(
        "an empty space",
        "is empty",
        "line 2: space:",
        "name at least one key",
        f"job: train.yaml\nspace: {{}}\n{_REST}",
    ),
    _case(
        "a key without values",
        "needs values: [A, B]",
        "line 2: space.steps:",
        "or a range: min: A and max: B",
        f"job: train.yaml\nspace: {{steps: {{min: 3}}}}\n{_REST}",
    ),
    _case(
        "values and a range",
        "has values and a range",
        "line 2: space.steps:",
        "give one of them",
        f"job: train.yaml\nspace: {{steps: {{values: [3], min: 3, max: 4}}}}\n{_REST}",
    ),
    _case(
        "a range of the wrong order",
        "min 4 is not less than max 3",
        "line 2: space.steps:",
        "swap them",
        f"job: train.yaml\nspace: {{steps: {{min: 4, max: 3}}}}\n{_REST}",
    ),
    _case(
        "the logarithm of 0",
        "min 0 has no logarithm",
        "space.optimizer.learning_rate:",
        "give a min above 0",
        f"job: train.yaml\nspace: {{optimizer.learning_rate: {{min: 0, max: 1, log: true}}}}\n{_REST}",
    ),
    _case(
        "a value twice",
        "has 3 twice",
        "line 2: space.steps:",
        "keep one of them",
        f"job: train.yaml\nspace: {{steps: {{values: [3, 3]}}}}\n{_REST}",
    ),
    _case(
        "a value that is not finite",
        "has .inf or .nan",
        "line 2: space.clip:",
        "the word in quotes",
        f"program: [python, text.txt]\nspace: {{clip: {{values: [1.0, .inf]}}}}\n{_REST}",
    ),
    _case(
        "a grid with a range",
        "a grid has no ranges",
        "line 2: space.steps:",
        "or use search: random",
        f"job: train.yaml\nspace: {{steps: {{min: 3, max: 4}}}}\nsearch: grid\n{_REST}",
    ),
    _case(
        "a random search without an end",
        "never ends by itself",
        "budget:",
        "budget: {trials: 20}",
        f"job: train.yaml\n{_SPACE}metric: min loss\n",
    ),
    _case(
        "a key of the pod in a sweep",
        "all trials have the same pod",
        "line 2: space.launch.slice:",
        "use --slice",
        f"job: train.yaml\nspace: {{launch.slice: {{values: [v3-8]}}}}\n{_REST}",
    ),
    _case(
        "a section and a key in it",
        "optimizer is searched as well",
        "space.optimizer.learning_rate:",
        "remove one of them",
        "job: train.yaml\nspace: {optimizer: {values: [sgd]}, optimizer.learning_rate: {values: [1]}}\n" + _REST,
    ),
    _case(
        "a value that the job does not accept",
        "must be a whole number",
        "steps=many",
        "train.yaml",
        f"job: train.yaml\nspace: {{steps: {{values: [3, many]}}}}\n{_REST}",
    ),
    _case(
        "a range whose numbers the job does not accept",
        "must be a whole number",
        "steps=6.708",
        "train.yaml",
        f"job: train.yaml\nspace: {{steps: {{min: 3, max: 9}}}}\n{_REST}",
    ),
    _case(
        "a key that the job does not have",
        "there is no such key",
        "optimizer.lr:",
        "did you mean",
        f"job: train.yaml\nspace: {{optimizer.lr: {{values: [3]}}}}\n{_REST}",
    ),
    _case(
        "hosts that cannot be divided",
        "cannot be divided into 2 equal parts",
        "side_by_side: 2: the 3 hosts of cpu-3x1",
        "give 1, 3",
        f"job: train.yaml\n{_SPACE}{_REST}side_by_side: 2\n",
        "--slice",
        "cpu-3x1",
        "--simulate",
    ),
    _case(
        "fewer steps than one trial has",
        "is less than the 6 steps of one trial",
        "budget.steps: 3",
        "give at least that",
        f"job: train.yaml\n{_SPACE}metric: min loss\nbudget: {{steps: 3}}\n",
    ),
    _case(
        "fewer steps than the largest trial has",
        "is less than the 1000 steps of one trial",
        "budget.steps: 100",
        "give at least that",
        "job: train.yaml\nspace: {steps: {values: [6, 1000]}}\nmetric: min loss\nbudget: {steps: 100}\n",
    ),
    _case(
        "a place in a program for no key of the space",
        "{lr} is no key of the space",
        "line 1: program:",
        "write {a}",
        f"program: [python, text.txt, '--a={{lr}}']\nspace: {{a: {{values: [1, 2]}}}}\n{_REST}",
    ),
    _case(
        "steps of a program",
        "does not know the steps of a program",
        "budget.steps:",
        "give budget.trials",
        f"program: [python, text.txt]\n{_SPACE}metric: min loss\nbudget: {{steps: 3}}\n",
    ),
    _case(
        "a sweep in a bucket",
        "needs folders",
        "workdir gs://bucket/a",
        "--workdir DIR",
        f"job: train.yaml\n{_SPACE}{_REST}",
        *("--slice", "cpu-1x1", "--simulate", "--workdir", "gs://bucket/a"),
    ),
    _case(
        "a sweep that would submit jobs",
        "does not submit jobs",
        "--slurm",
        "--array KEY=A,B",
        f"job: train.yaml\n{_SPACE}{_REST}",
        *("--slice", "cpu-1x1", "--slurm=time=1:00:00"),
    ),
]

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

_EARLY = "job: train.yaml\nspace: {seed: {values: [1, 2, 3]}}\nmetric: min loss\nbudget: {trials: 3}\n"
_EPOCHS = "task: regression\nepochs: 5\nbatch_size: 8\n"
_STOPS = "task: regression\nsteps: 6\nstop_at: 4\nbatch_size: 8\n"


def _of_job(name: str, what: str, where: str, remedy: str, job: str) -> Case:
    """Return a case of a sweep with early stopping whose train.yaml has this text."""
    files = {"sweep.yaml": _EARLY + "early_stopping: {min_steps: 2}\n", "train.yaml": job}
    return Case(name, what, where, remedy, ("sweep", "--slice", "cpu-1x1", "--simulate", "sweep.yaml"), files=files)


EARLY_STOPPING = [
    _case(
        "a first rung after the last step",
        "is not less than the 6 steps of a trial",
        "early_stopping.min_steps: 6",
        "give less",
        _EARLY + "early_stopping: {min_steps: 6}\n",
    ),
    _case(
        "early stopping without a first rung",
        "required",
        "line 5: early_stopping.min_steps:",
        "required",
        _EARLY + "early_stopping: {factor: 3}\n",
    ),
    _case(
        "early stopping by its name alone",
        "(it is 'asha')",
        "line 5: early_stopping:",
        "min_steps",
        _EARLY + "early_stopping: asha\n",
    ),
    _case(
        "each trial goes on",
        "must be greater than or equal to 2",
        "line 5: early_stopping.factor:",
        "it is 1",
        _EARLY + "early_stopping: {min_steps: 2, factor: 1}\n",
    ),
    _case(
        "no evaluations at rungs",
        "eval.every is 0",
        "early_stopping: trials are compared by loss at step 2",
        "give eval.every: 2",
        _EARLY + "early_stopping: {min_steps: 2}\n",
    ),
    _case(
        "rungs between evaluations",
        "is no multiple of eval.every, 3",
        "early_stopping.min_steps: 2",
        "give 3, or eval.every: 2",
        _EARLY.replace("{seed: {values: [1, 2, 3]}}", "{eval.every: {values: [2, 3]}}")
        + "early_stopping: {min_steps: 2}\n",
    ),
    _case(
        "rungs between the reports of a metric of training",
        "is no multiple of log.every, 4",
        "early_stopping.min_steps: 2",
        "give 4, or log.every: 2",
        _EARLY.replace("{seed: {values: [1, 2, 3]}}", "{log.every: {values: [2, 4]}}").replace("loss", "grad_norm")
        + "early_stopping: {min_steps: 2}\n",
    ),
    _case(
        "too few trials for any to be trained to its end",
        "of 3 trials none is trained to step 6",
        "early_stopping: one of 2 trials goes on from each rung (1, 2, 4)",
        "give at least 8 trials, or a larger min_steps",
        _EARLY.replace("loss", "grad_norm") + "early_stopping: {min_steps: 1, factor: 2}\n",
    ),
    _case(
        "too few steps for any trial to be trained to its end",
        "is too few to train one trial to step 6",
        "budget.steps: 10",
        "give at least 18, or a larger min_steps",
        _EARLY.replace("loss", "grad_norm").replace("trials: 3", "steps: 10")
        + "early_stopping: {min_steps: 1, factor: 2}\n",
    ),
    _case(
        "early stopping of a program",
        "does not know the steps and checkpoints of a program",
        "line 5: early_stopping:",
        "remove it",
        _EARLY.replace("job: train.yaml", "program: [python, text.txt]") + "early_stopping: {min_steps: 2}\n",
    ),
    _case(
        "trials of different lengths that are stopped early",
        "compares trials at the same steps",
        "line 2: space.steps:",
        "give it in the job",
        _EARLY.replace("{seed: {values: [1, 2, 3]}}", "{steps: {values: [6, 12]}}")
        + "early_stopping: {min_steps: 2}\n",
    ),
    _of_job(
        "early stopping of a job of epochs", "the job gives epochs", "early_stopping:", "give its steps", job=_EPOCHS
    ),
    Case(
        "a range of evaluations, some between rungs",
        "the range has 5, of which early_stopping.min_steps, 12, is no multiple",
        "space.eval.every:",
        "list the numbers instead",
        ("sweep", "--slice", "cpu-1x1", "--simulate", "sweep.yaml"),
        files={
            "sweep.yaml": _EARLY.replace("{seed: {values: [1, 2, 3]}}", "{eval.every: {min: 1, max: 6, int: true}}")
            + "early_stopping: {min_steps: 12}\n",
            "train.yaml": "task: regression\nsteps: 24\nbatch_size: 8\n",
        },
    ),
    _of_job(
        "two rules that stop a trial early",
        "may end a trial between rungs",
        "eval.patience: 3",
        "remove one of them",
        job="task: regression\nsteps: 6\nbatch_size: 8\neval: {every: 2, patience: 3}\n",
    ),
    _of_job("two ways to end a trial", "stop_at: 4 in the job", "early_stopping says", "remove one", job=_STOPS),
]

"""Ask Optuna for the values of a trial, as a function of the seed, the trial's number and earlier results. PURE."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState
from pydantic import JsonValue

from .space import Values, rounded
from .state import Trial, TrialState
from .sweep_file import Parameter, SweepFile


def suggested(file: SweepFile, number: int, earlier: Sequence[Trial]) -> Values:
    """Return the values of trial `number` that Optuna's TPE suggests.

    A study is made anew for each trial, with a seed of its own, so that nothing but the arguments decides.

    Args:
        file: the sweep.yaml.
        number: number of the trial.
        earlier: the trials before it whose results it may use; one that has failed has none. Of one that was not trained to
            its end the values at its rungs are told, as those of a trial that was pruned.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=zlib.crc32(f"{file.seed} {number}".encode()))
    direction = "maximize" if file.ranking.is_max else "minimize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    space = {key: _distribution(parameter) for key, parameter in file.space.items()}
    told = [trial for trial in earlier if trial.result is not None]
    study.add_trials([_told(trial, file.space, space) for trial in told])
    asked = study.ask(space).params
    return {key: _value(parameter, asked[key]) for key, parameter in file.space.items()}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.values is not None:
        return CategoricalDistribution(range(len(parameter.values)))  # Optuna takes no lists and sections
    assert parameter.min is not None and parameter.max is not None
    if parameter.whole:
        return IntDistribution(int(parameter.min), int(parameter.max), log=parameter.log)
    return FloatDistribution(parameter.min, parameter.max, log=parameter.log)


def _told(trial: Trial, parameters: Mapping[str, Parameter], space: dict[str, BaseDistribution]) -> FrozenTrial:
    params: dict[str, Any] = {
        key: value if parameters[key].values is None else parameters[key].place_of(value)
        for key, value in trial.values.items()
    }
    return create_trial(
        state=OptunaState.COMPLETE if trial.state is TrialState.DONE else OptunaState.PRUNED,
        params=params,
        distributions=space,
        value=trial.value,
        intermediate_values=trial.rungs,
    )


def _value(parameter: Parameter, asked: Any) -> JsonValue:
    if parameter.values is not None:
        return parameter.values[int(asked)]
    return int(asked) if parameter.whole else rounded(parameter, float(asked))

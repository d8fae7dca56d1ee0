"""Datasets that need no files: computed from a seed, or part of scikit-learn."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import DigitsData, MakeClassificationData, SineData
from ..contract import UserError
from .arrays import Array, array_dataset, fingerprint, split
from .base import Dataset


def _of_scikit_learn(name: str, data: str) -> Callable[..., Any]:
    """Return a function of sklearn.datasets. Raises UserError if scikit-learn is not installed."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise UserError(
            f"data.name {data} needs scikit-learn, which {sys.executable} lacks ({error}); install it there, or, if podrun "
            "builds the hosts' environment, add a line scikit-learn to requirements.txt"
        ) from None
    function: Callable[..., Any] = getattr(datasets, name)
    return function


def digits_dataset(section: DigitsData, config: Config) -> Dataset:
    """Return the dataset: x float32[8, 8, 1] from 0 to 1, y int32 from 0 to 9."""
    load_digits = _of_scikit_learn("load_digits", section.name)
    x, y = load_digits(return_X_y=True)
    images = (x.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    return array_dataset(*split((images, y.astype(np.int32)), section.validation, "data.name digits"), classes=10)


def make_classification_dataset(section: MakeClassificationData, config: Config) -> Dataset:
    """Return the dataset: x float32[features], y int32. With validation 0, the training set is also the validation set."""
    make_classification = _of_scikit_learn("make_classification", section.name)
    x, y = make_classification(
        n_samples=section.samples,
        n_features=section.features,
        n_classes=section.classes,
        n_informative=section.informative,
        random_state=section.seed,
    )
    whole = x.astype(np.float32), y.astype(np.int32)
    train, validation = split(whole, section.validation, "data.samples") if section.validation else (whole, whole)
    return array_dataset(train, validation, section.classes, identity=_identity(section, y))


def sine_dataset(section: SineData, config: Config) -> Dataset:
    """Return the dataset: x float32[1], y float32[1]."""
    generator = np.random.default_rng(section.seed)
    x = generator.uniform(*section.range, (section.samples, 1))
    noise = section.noise * generator.standard_normal((section.samples, 1))
    y = np.sin(6 * x) - x**2 / 2 + noise
    whole = x.astype(np.float32), y.astype(np.float32)
    return array_dataset(*split(whole, section.validation, "data.samples"), identity=_identity(section, x, noise))


def _identity(section: MakeClassificationData | SineData, *exact: Array) -> bytes:
    """Return bytes that identify computed data: its options and the arrays `exact`.

    The other arrays cannot be used, because the last bits of sines and products depend on the CPU.
    """
    # `skip` changes no example, and a key that newer versions added is left out at its default, so that older runs go on.
    later = {"skip", "range"} if isinstance(section, SineData) and section.range == (-1.0, 1.0) else {"skip"}
    return section.model_dump_json(exclude=later).encode() + fingerprint(*exact)

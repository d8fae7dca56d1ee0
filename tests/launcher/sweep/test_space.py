"""The values of trials: a function of the seed and the number alone."""

from __future__ import annotations

import math

import pytest

from podrun.launcher.sweep.space import corners, drawn, text_of, values_of, variant_of
from podrun.launcher.sweep.sweep_file import Parameter
from podrun.launcher.yamlfile.yaml_file import parse

from .made import SPACE, made


def test_a_grid_has_each_combination_once_and_the_last_key_varies_fastest() -> None:
    file = made(search="grid", space={"a": {"values": [1, 2]}, "b": {"values": ["x", "y", "z"]}})
    assert file.combinations() == 6
    trials = [values_of(file, number) for number in range(6)]
    assert trials == [{"a": a, "b": b} for a in (1, 2) for b in "xyz"]


def test_a_random_trial_depends_on_its_number_the_seed_and_its_key_alone() -> None:
    """So that trials of a resumed or extended sweep are the same, and another key changes none of the others."""
    file = made()
    trials = [values_of(file, number) for number in range(50)]
    assert trials[7] == values_of(made(budget={"trials": 400}), 7)
    assert trials[7]["lr"] == values_of(made(space={"lr": SPACE["lr"]}), 7)["lr"]
    assert trials != [values_of(made(seed=1), number) for number in range(50)]
    assert values_of(file, 0) == {"lr": 0.000329594, "layers": 2} or isinstance(values_of(file, 0)["lr"], float)
    assert {trial["layers"] for trial in trials} == {2, 4, 8}
    exponents = [math.log10(float(str(trial["lr"]))) for trial in trials]
    assert -4 <= min(exponents) < -3.5 and -1.5 < max(exponents) <= -1


@pytest.mark.parametrize("log", [False, True])
def test_a_whole_range_has_both_ends_and_nothing_outside(log: bool) -> None:
    parameter = Parameter.model_validate({"min": 1, "max": 4, "int": True, "log": log})
    numbers = [drawn(parameter, share / 1000) for share in range(1000)]
    assert set(numbers) == {1, 2, 3, 4} and numbers == sorted(numbers, key=lambda number: float(str(number)))


def test_the_ends_of_a_range_are_not_exceeded_by_rounding() -> None:
    parameter = Parameter(min=0.12345678, max=0.12345679)
    assert 0.12345678 <= float(str(drawn(parameter, 0.0))) <= 0.12345679


def test_corners_have_each_listed_value_both_ends_and_a_number_between() -> None:
    found = corners(made())
    assert [one["layers"] for one in found] == [2, 4, 8] and [one["lr"] for one in found] == [1e-4, 1e-1, 0.00714496]


@pytest.mark.parametrize(
    "value", [3, 1e-7, True, None, "sgd", "yes", "1e-3", "a: b", [1, "x,y"], {"name": "adam"}, "it's"]
)
def test_a_value_is_read_back_as_it_was(value: object) -> None:
    assert parse(text_of(value))[0] == value  # type: ignore[arg-type]


def test_a_trial_is_a_variant_with_short_names() -> None:
    variant = variant_of(12, {"optimizer.learning_rate": 0.01, "model.layers": 2})
    assert (variant.name, variant.folder) == ("learning_rate=0.01 layers=2", "trial-0012")
    assert variant.keys() == ("optimizer.learning_rate=0.01", "model.layers=2")


@pytest.mark.parametrize(
    "value", ["é, b", "C:\\x, y", "two\nlines", "😀, b", "tab\there", "a\u2028b\x85\x7f", 'say "hi"', "it's", " ", ""]
)
def test_a_program_gets_a_text_as_it_is_in_the_file(value: str) -> None:
    """And so does a job: it reads the text as YAML."""
    variant = variant_of(0, {"v": value})
    assert variant.program(["prog", "{v}"]) == ("prog", value)
    assert parse(text_of(value))[0] == value


def test_a_list_and_a_section_keep_their_characters() -> None:
    assert variant_of(0, {"v": [1, "é"]}).program(["{v}"]) == ('[1, "é"]',)
    assert parse(text_of({"k": "😀\u2028"}))[0] == {"k": "😀\u2028"}


def test_numbers_of_different_types_are_different_values() -> None:
    parameter = Parameter.model_validate({"values": [1, True, 2.0, [1]]})
    assert [parameter.place_of(value) for value in (1, True, 2.0, [1], 2, False, [True])] == [
        0,
        1,
        2,
        3,
        None,
        None,
        None,
    ]


def test_whole_numbers_that_would_be_rounded_are_refused() -> None:
    with pytest.raises(ValueError, match="would be rounded"):
        Parameter.model_validate({"min": 1, "max": 2**53 + 1, "int": True})

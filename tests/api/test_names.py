"""The names of the package, and those that people of other libraries look for."""

from __future__ import annotations

import pytest

import podrun


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("log", "podrun.report(step, loss=loss) reports metrics"),
        ("is_main_process", "podrun.init() returns this process: .leads"),
        ("barrier", "sync_global_devices(name) waits for all processes"),
        ("gather", "process_allgather"),
        ("print", "if podrun.init().leads: print(...)"),
    ],
)
def test_names_of_other_libraries_are_hinted_at(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match="module 'podrun' has no attribute") as error:
        getattr(podrun, name)
    assert hint in str(error.value)


def test_all_names_exist() -> None:
    for name in podrun.__all__:
        assert getattr(podrun, name) is not None
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        podrun.nothing  # noqa: B018

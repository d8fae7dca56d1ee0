"""What tests/conftest.py does for all tests."""

from __future__ import annotations

import pytest

from . import conftest


@pytest.mark.parametrize("worker", ["gw0", None])
def test_a_ctrl_c_that_reaches_pytest_fails_only_its_test(monkeypatch: pytest.MonkeyPatch, worker: str | None) -> None:
    """Without pytest-xdist it is the user's own, and ends everything."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    call = conftest.pytest_runtest_call()
    next(call)
    with pytest.raises(pytest.fail.Exception if worker else KeyboardInterrupt):
        call.throw(KeyboardInterrupt())

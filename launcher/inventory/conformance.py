"""Tests of the inventory interface, for the test suites of plug-ins.

    from podrun.launcher.inventory.conformance import InventoryConformance

    class TestMine(InventoryConformance):
        value = "mine:pod-a"             # value of --hosts-from; fixtures provide the service
        refused = ("mine:no such pod",)  # values that raise UserError or UnavailableError

pytest collects the tests of the subclass.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any

from podrun.runtime.contract import UnavailableError, UserError

from .base import INVENTORIES, Listing
from .find import find_pod
from .listing_checks import listing_problems
from .pod_request import PodRequest

_HEAVY = ("jax", "numpy", "torch", "tensorflow")  # slow imports, some of which claim the accelerators


class InventoryConformance:
    """Tests of one inventory. A subclass names the inventory and sample values."""

    option = "hosts_from"
    """Name of its option in INVENTORIES."""
    value: Any
    """A value of the option for which the service has a pod."""
    refinements: Mapping[str, Any] = {}
    """Values of further options that are required."""
    refused: tuple[Any, ...] = ()
    """Values for which the service has no pod."""

    def test_lists_hosts_of_a_pod(self) -> None:
        """Names, addresses, slice and settings are valid."""
        assert list(listing_problems(self._listed())) == []

    def test_is_asked_for_a_pod(self) -> None:
        """The option yields these hosts in this order, and the slice if it is known."""
        listing = self._listed()
        pod = find_pod(replace(self._request(), any_slice=True))
        assert pod.hosts == listing.hosts
        assert listing.slice is None or pod.slice == listing.slice

    def test_says_the_same_again(self) -> None:
        """Two calls return the same order, which determines the process ids of a restarted run."""
        assert self._listed() == self._listed()

    def test_leaves_this_process_alone(self) -> None:
        """It prints nothing (output may be JSON), keeps environment and folder unchanged, and imports nothing slow."""
        before, folder, modules = dict(os.environ), os.getcwd(), set(sys.modules)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            self._listed()
        assert (out.getvalue(), err.getvalue()) == ("", "")
        assert (dict(os.environ), os.getcwd()) == (before, folder)
        assert [name for name in _HEAVY if name in sys.modules and name not in modules] == []

    def test_says_why_there_is_no_pod(self) -> None:
        """Its error has a readable text; any other exception would be shown as a traceback."""
        for value in self.refused:
            try:
                listing = self._listed(value)
            except (UserError, UnavailableError) as error:
                text = str(error)
                assert len(text.split()) > 3 and text.replace("\n", "").isprintable(), f"says only {text!r}"
            else:
                raise AssertionError(f"{value!r} is not refused: {listing}")

    def _request(self, *values: Any) -> PodRequest:
        [value] = values or (self.value,)
        return PodRequest(inventories={self.option: value}, refinements=self.refinements)

    def _listed(self, *values: Any) -> Listing:
        listing = self._request(*values).listed
        assert listing is not None, (
            f"{self.option} is not one of {', '.join(INVENTORIES)} that lists hosts, or lacks an option"
        )
        return listing

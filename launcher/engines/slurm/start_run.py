"""Start a submitted run on the nodes of its SLURM job, and import what supervises it while its agents start."""

from __future__ import annotations

import json
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from podrun.runtime.contract import UserError

from ...inventory.base import Listing
from ...pod.container import Container
from ...pod.pod import Pod
from ...pod.slices import parse_slice
from .inventory import nodes_of_job, with_addresses

if TYPE_CHECKING:
    from ...remote.prestart import Prestart


class Nodes(threading.Thread):
    """A thread that asks SLURM for the nodes of this job: first for their names, by which agents can be started."""

    def __init__(self, names: str | None = None) -> None:
        """Start the thread. `names`: the names of the nodes as SLURM prints them, if it has been asked."""
        super().__init__(name="nodes", daemon=True)
        self._names = names
        self._named: Listing | None = None
        self._listing: Listing | None = None
        self._has_names = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with suppress(UserError):  # the supervisor asks again, and reports it
                self._named = nodes_of_job(self._names)
                self._has_names.set()
                self._listing = with_addresses(self._named)
        finally:
            self._has_names.set()

    def named(self) -> Listing | None:
        """Wait for the nodes without their addresses; None on an error."""
        self._has_names.wait()
        return self._named

    def listing(self) -> Listing | None:
        """Wait for the answer; None on an error."""
        self.join()
        return self._listing


def start_agents(directory: Path, nodes: Nodes) -> Prestart | None:
    """Start the agents of a run on the nodes of this job. Returns None on an error, which the supervisor reports."""
    from ...remote.prestart import Prestart

    try:
        recorded = json.loads((directory / "spec.json").read_bytes())["pod"]
        slice = parse_slice(recorded["slice"]["name"])
        home, python = str(recorded["home"]), str(recorded["python"])
        container = Container(**recorded["container"]) if recorded["container"] else None
        requirements = Path(recorded["requirements"]) if recorded["requirements"] else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError, UserError):
        return None
    if (listing := nodes.named()) is None:
        return None
    pod = Pod(
        slice,
        listing.hosts[: slice.hosts],
        "slurm",
        "cpu",
        queue_job=listing.queue_job,
        home=home,
        python=python,
        container=container,
        requirements=requirements,
    )
    return Prestart(pod, directory.name)


def start_run(names: str | None = None) -> NoReturn:
    """Start or continue the run of this process's argument, and exit. `names`: see `Nodes`."""
    directory = Path(sys.argv[1])
    nodes = Nodes(names)
    prestarted = start_agents(directory, nodes)
    try:
        from ...rundir.runs import RunDirectory
        from .in_job import supervise_and_report

        code = supervise_and_report(RunDirectory(directory), nodes.listing(), prestarted)
    finally:
        if prestarted:
            prestarted.close()
    sys.exit(code)

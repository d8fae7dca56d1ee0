"""Build the pod from the command line, the pod file and train.yaml. Reports all mistakes at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

from ..pod.errors import Mistakes
from ..pod.home import podrun_home
from ..pod.pod import Host, Pod, Ssh
from ..pod.slices import Slice, on_hosts, parse_slice, several_slices, size_name
from ..pod.traits import LISTED, TRAITS
from .base import INVENTORIES, REFINEMENTS, Listing, option_of, usage_of
from .fits import duplicates, misfit
from .pod_request import PodRequest
from .simulated import simulated_pod

if TYPE_CHECKING:
    from ..pod.container import Container
    from ..yamlfile.mistakes import Row
    from .pod_file import ParsedPodFile

_PLATFORMS = {"tpu": "tpu", "gpu": "cuda", "cpu": "cpu"}


def find_pod(request: PodRequest, launch: Launch | None = None) -> Pod:
    """Return the pod: its slice, hosts and transport.

    The command line overrides the pod file, and the pod file overrides train.yaml.

    Args:
        request: the command line's options about the pod.
        launch: the `launch` section of train.yaml, if there is one.

    Raises:
        UserError: lists all mistakes.
    """
    return _Search(request, launch or Launch()).pod()


class _Search:
    def __init__(self, request: PodRequest, launch: Launch) -> None:
        request.check_here()
        self._request = request
        self._launch = launch
        self._mistakes = Mistakes()
        self._rows: list[Row] = []  # mistakes in the pod file
        is_here = any(INVENTORIES[name].is_here for name in request.listing)
        path = request.pod or (None if is_here else launch.pod)
        self._path = path
        self._described = self._mistakes.check(lambda: _read(path)) if path else None
        self._lister = request.lister
        self._listed = self._mistakes.check(lambda: request.listed)
        self._slice = self._mistakes.check(self._find_slices)

    def pod(self) -> Pod:
        """Return the pod. Raises UserError with all mistakes."""
        self._check_request()
        if self._described:
            self._check_described(self._described)
        if self._listed and self._lister and not self._request.simulation:
            self._check_listed(self._lister, self._listed)
        if self._described and self._rows:
            from ..yamlfile.mistakes import mistakes_error

            self._mistakes.add(str(mistakes_error(self._described.title, self._rows)))
        self._mistakes.raise_any()
        assert self._slice
        return self._make(self._slice)

    @property
    def _names_hosts(self) -> bool:
        """Return True if the command line names the hosts."""
        return bool(self._request.listing)

    # --- collect the input ----------------------------------------------------------------------------------------------

    def _find_slices(self) -> Slice | None:
        """Return the slice, multiplied by --num-slices; None after a mistake, which is recorded."""
        slice = self._find_slice()
        count = self._request.num_slices
        return slice if slice is None or count is None else several_slices(slice, count)

    def _find_slice(self) -> Slice | None:
        """Return a single slice; None after a mistake, which is recorded. Raises UserError."""
        file = self._described.file if self._described else None
        if self._request.any_slice and (count := self._count_hosts()):
            return (self._listed and self._listed.slice) or parse_slice(f"cpu-{count}x1")
        name = self._request.slice or (file.slice if file else None)
        if name is None and self._path and (self._described is None or "slice" in self._described.broken):
            return None
        name = name or self._launch.slice
        if name is not None:
            return parse_slice(name)
        listing = self._listed or (self._described.listing if self._described and not self._names_hosts else None)
        if listing and listing.ask_slice:
            return listing.ask_slice()
        if self._listed and self._listed.slice:
            return self._listed.slice
        if self._listed and self._listed.slots:
            return parse_slice(f"gpu-{len(self._listed.hosts)}x{self._listed.slots}")
        if self._lister and INVENTORIES[self._lister].knows_slice and self._listed is None:
            return None
        places = ["--slice", *([f"`slice` in {self._path}"] if self._path else []), *self._in_train("launch.slice")]
        raise UserError(
            f"no slice: looked for {_join_with_and(places)}\n"
            "say what the pod should be, for example --slice v3-32 (or gpu-2x8, cpu-2x4); `podrun slices` lists the TPU types"
        )

    def _count_hosts(self) -> int:
        """Return the number of named hosts; 0 if they are simulated, because the slice then determines their number."""
        if self._request.simulation:
            return 0
        if self._listed:
            return len(self._listed.hosts)
        return len(self._described.hosts) if self._described and not self._names_hosts else 0

    def _in_train(self, key: str) -> list[str]:
        return [f"{key} in {self._request.train}"] if self._request.train else []

    # --- check the input --------------------------------------------------------------------------------------

    def _check_request(self) -> None:
        listing, simulation = [option_of(name) for name in self._request.listing], self._request.simulation
        if len(listing) > 1:
            self._mistakes.add(f"{' and '.join(listing[:2])} both say where the hosts are; give one of them")
        if simulation and listing:
            here = option_of(simulation)
            self._mistakes.add(f"{here} runs on this machine, {listing[0]} names others; give one of them")
        elif not simulation and not listing and self._path is None:
            simulations = [usage_of(name) for name, inventory in INVENTORIES.items() if not inventory.lists_hosts]
            lists = [usage_of(name) for name, inventory in INVENTORIES.items() if inventory.lists_hosts]
            places = [*simulations, "--pod FILE", *lists, *self._in_train("launch.pod")]
            self._mistakes.add(
                f"no hosts: looked for {_join_with_and(places)}\n"
                "add --local to use this machine's GPUs, TPU chips or CPU; or --simulate to run the slice here, as processes "
                "with virtual CPU devices; or describe your hosts in a file: `podrun init` writes one"
            )
        for name in self._request.refinements:
            if (refined := REFINEMENTS[name].inventory) not in self._request.inventories:
                self._mistakes.add(f"{option_of(name)} is for {usage_of(refined)}; add that, or leave this out")
        for name in self._request.listing:
            for key in self._request.lacks(name):
                self._mistakes.add(f"{option_of(name)} needs {usage_of(key)} as well")

    def _check_described(self, described: ParsedPodFile) -> None:
        from ..yamlfile.mistakes import mistake_row
        from .pod_checks import check_pod

        self._rows += described.mistakes
        if self._request.simulation:
            return
        here = self._listed is not None and TRAITS[self._listed.transport].files_are_here
        self._rows += check_pod(described, other_hosts=self._names_hosts, here=here)
        hosts = () if self._names_hosts else described.hosts
        if hosts and self._slice:
            self._slice = on_hosts(self._slice, len(hosts))
        if hosts and self._slice and (what := _misfit(self._slice, described.listing)):
            self._rows.append(mistake_row(described.inventory or "hosts", what, described.lines))
        if (container := described.container) and container.holds_agent and not self._can_hold_agent(container):
            what = f"{container.engine} {container.how.needs}"
            self._rows.append(mistake_row("container.engine", what, described.lines))
        if self._slice and (what := _least_problem(described.file.min_hosts, self._slice)):
            self._rows.append(mistake_row("min_hosts", what, described.lines))

    def _can_hold_agent(self, container: Container) -> bool:
        """Return True if the pod's hosts can start the agent in an image by this engine."""
        if container.how.transport:  # wraps the command lines of a login shell
            return TRAITS[self._listed.transport if self._listed else LISTED].has_login
        return self._listed is not None and TRAITS[self._listed.transport].starts_containers

    def _check_listed(self, lister: str, listed: Listing) -> None:
        problems = [*duplicates(listed.hosts)]
        if self._slice and not listed.is_queued:
            self._slice = on_hosts(self._slice, len(listed.hosts) - listed.spares)
        if self._slice and listed.slice and _is_size_of(self._slice, listed.slice):
            self._slice = listed.slice
        if self._slice and listed.slice and listed.slice != self._slice:
            asked, real = self._slice.name, listed.slice.name
            name = self._request.inventories[lister]
            problems.append(
                f"{name} is a {real}, but the slice asked for is {asked}; leave that out, or ask for {real}"
            )
        elif self._slice and not listed.is_queued and (what := _misfit(self._slice, listed)):
            problems.append(what)
        devices = self._slice.devices_per_host if self._slice and self._slice.kind != "tpu" else None
        if (
            self._slice
            and devices
            and not self._request.any_slice
            and (what := _slots_problem(listed, self._slice, devices))
        ):
            problems.append(what)
        transport = self._described.file.transport if self._described else None
        if transport and not TRAITS[transport].lists_hosts:
            problems.append(f"{self._path} says `transport: {transport}`, a simulated pod; remove one of the two")
        elif transport and listed.transport not in (LISTED, transport) and not TRAITS[listed.transport].files_are_here:
            here = TRAITS[listed.transport].reached
            problems.append(
                f"{self._path} says `transport: {transport}`, but its hosts are {here}; remove one of the two"
            )
        self._mistakes.add(*[f"{option_of(lister)}: {what}" for what in problems])

    # --- the pod ----------------------------------------------------------------------------------------------------

    def _make(self, slice: Slice) -> Pod:
        if simulation := self._request.simulation:
            return INVENTORIES[simulation].from_slice(slice)
        listed = self._listed or (self._described.listing if self._described else Listing(()))
        hosts = listed.hosts if not listed.is_queued else _queued_hosts(slice.hosts + listed.spares)
        hosts, spares = (hosts[: slice.hosts], hosts[slice.hosts :]) if listed.spares else (hosts, ())
        pod = Pod(
            slice,
            hosts,
            listed.transport,
            _PLATFORMS[slice.kind],
            ssh=listed.ssh,
            queue_job=listed.queue_job,
            python=listed.python,
            spares=spares,
        )
        if pod.traits.files_are_here:
            pod = replace(pod, home=str(podrun_home()))
        if self._described is None:
            return pod
        file = self._described.file
        if not hosts:
            pod = simulated_pod(slice)
        return replace(
            pod,
            ssh=_merge(self._listed.ssh if self._listed else Ssh(), self._described),
            home=pod.home if pod.traits.files_are_here else file.home,
            python=file.python or pod.python,
            container=self._described.container,
            workdir=file.workdir,
            env=dict(file.env),
            secrets=file.secrets,
            secrets_file=self._described.at(file.secrets_file),
            setup=file.setup,
            requirements=self._described.at(file.requirements),
            offline=file.offline,
            ports=file.ports,
            spares=spares or tuple(host for host in self._described.spares if host.name not in {h.name for h in hosts}),
            min_hosts=file.min_hosts,
            excludes_bad=file.exclude == "bad",
        )


def _read(path: Path) -> ParsedPodFile:
    from .pod_file import read_pod_file  # slow import, and many pods have no file

    return read_pod_file(path)


def _is_size_of(asked: Slice, real: Slice) -> bool:
    """Return True if a TPU slice was asked for by the size of the real one, which has another topology."""
    return asked.kind == real.kind == "tpu" and asked.slices == real.slices == 1 and asked.name == size_name(real)


def _queued_hosts(count: int) -> tuple[Host, ...]:
    """Return placeholders for the nodes of a job that has not started."""
    return tuple(Host(f"node-{number}", f"node-{number}") for number in range(count))


def _merge(listed: Ssh, described: ParsedPodFile) -> Ssh:
    """Return the SSH settings of the pod file. The listing gives those that the file lacks."""
    given = set(described.file.ssh.model_fields_set)
    keys = {"known_hosts", "host_keys"}
    given |= keys if given & keys else set()  # these belong together: replace all or none
    return replace(listed, **{name: getattr(described.ssh, name) for name in given})


def _misfit(slice: Slice, listed: Listing) -> str | None:
    """Return a message if the slice and the listing have different numbers of hosts; otherwise None."""
    if TRAITS[listed.transport].files_are_here and slice.hosts > 1:
        return (
            f"{slice.name} has {slice.hosts} hosts, and this machine is one; give a slice of one host, or simulate it"
        )
    return misfit(slice, len(listed.hosts) - listed.spares)


def _slots_problem(listed: Listing, slice: Slice, devices: int) -> str | None:
    """Return a message if the slice and the listing have different numbers of devices per host; otherwise None."""
    if listed.slots is None or devices == listed.slots:
        return None
    if not listed.slots_are_limit:
        return f"slots={listed.slots}, but {slice.name} has {devices} devices per host; change one of them"
    if slice.kind == "cpu" or devices < listed.slots:
        return None
    return f"{listed.slots} devices on each host, but {slice.name} has {devices}; give a slice with at most that many"


def _least_problem(least: int | None, slice: Slice) -> str | None:
    """Return a message if the slice cannot shrink to `least` hosts; otherwise None."""
    if least is None or least == slice.hosts:
        return None
    if least > slice.hosts:
        return f"{least} is more than the {slice.hosts} hosts of {slice.name}; give at most that"
    if slice.slices > 1:
        return (
            f"{slice.name} cannot continue with fewer hosts: it is {slice.slices} slices; remove it, or give `spares`"
        )
    if not slice.can_shrink:
        return (
            f"{slice.name} cannot continue with fewer hosts: its chips are wired together; remove it, or give `spares`"
        )
    return None


def _join_with_and(places: list[str]) -> str:
    return places[0] if len(places) == 1 else f"{', '.join(places[:-1])}, and {places[-1]}"

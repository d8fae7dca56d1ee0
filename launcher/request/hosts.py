"""Select the hosts of a command: those of a pod, or those of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

from podrun.runtime.contract import UserError

from ..inventory.find import PodRequest, find_pod
from ..pod.pod import Pod
from ..rundir.runs import RunDirectory, find_run


@dataclass(frozen=True)
class HostSelection:
    """Command-line options that select hosts."""

    pod: PodRequest
    run: str | None = None

    @property
    def names_pod(self) -> bool:
        request = self.pod
        return bool(request.pod or request.hosts is not None or request.hostfile or request.simulate or request.slice)


def select_hosts(selection: HostSelection, command: str) -> tuple[Pod, RunDirectory | None]:
    """Return the pod, and its run, if one was named. Raises UserError."""
    if selection.run is not None and selection.names_pod:
        raise UserError("a run names its hosts already; leave out --pod, --hosts, --hostfile, --slice and --simulate")
    if selection.run is not None:
        directory = find_run(selection.run)
        return directory.spec().pod, directory
    if not selection.names_pod:
        raise UserError(
            f"no hosts: say which, for example podrun {command} --pod pod.yaml, --hosts tpu-[0-3], "
            "or --run RUN for those of a run"
        )
    return find_pod(replace(selection.pod, any_slice=True)), None

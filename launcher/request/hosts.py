"""Select the hosts of a command: from the options of a pod, or from a run."""

from __future__ import annotations

from dataclasses import replace

from podrun.runtime.contract import UserError

from ..inventory.base import INVENTORIES, option_of
from ..inventory.find import find_pod
from ..inventory.pod_request import PodRequest
from ..pod.pod import Pod
from ..rundir.runs import RunDirectory, find_run


def select_hosts(where: PodRequest, run: str | None, command: str) -> tuple[Pod, RunDirectory | None]:
    """Return the hosts of a pod or of a run, and the run if it was named. Raises UserError.

    Args:
        where: the typed options of a pod.
        run: name or id of a run; None: the options are used.
        command: name of the podrun command, for messages.
    """
    if run is not None and where.names_pod:
        lists = [option_of(name) for name, inventory in INVENTORIES.items() if inventory.lists_hosts]
        simulations = [option_of(name) for name, inventory in INVENTORIES.items() if not inventory.lists_hosts]
        options = ["--pod", *lists, "--slice", *simulations]
        raise UserError(f"a run names its hosts already; leave out {', '.join(options[:-1])} and {options[-1]}")
    if run is not None:
        directory = find_run(run)
        return directory.spec().pod, directory
    if not where.names_pod:
        raise UserError(
            f"no hosts: say which, for example podrun {command} --pod pod.yaml, --hosts tpu-[0-3], "
            "or --run RUN for the hosts of a run"
        )
    return find_pod(replace(where, any_slice=True)), None

"""Pack what a run sends to remote hosts: its code and its data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from podrun.runtime.wording import first_names

from ..agent.base.places import bundle_folder
from ..plan.program import Program
from ..plan.spec import Code, RunSpec
from ..staging.bundle import Bundle
from ..staging.bundles import podrun_bundle, project_bundle
from ..staging.project_files import IGNORE_FILE, shown
from ..staging.requirements import check_runtime_packages, worker_python
from ..staging.stored_executables import Stored, stored_executables


def with_code(spec: RunSpec) -> tuple[RunSpec, tuple[Bundle, ...]]:
    """Pack the project, podrun and the data for remote hosts. Prints progress on stderr if reading takes long.

    Returns:
        The spec with the paths on the hosts, and the bundles to send.

    Raises:
        UserError: project or data cannot be sent, or the requirements lack packages of podrun's runtime.
    """
    if not isinstance(spec.job, Program):
        check_runtime_packages(spec.pod)
    project, subfolder = project_bundle(spec.cwd)
    if project.private:
        _name_private(project.private)
    podrun = podrun_bundle()
    home = spec.pod.home
    code = Code(bundle_folder(home, project.name), subfolder, bundle_folder(home, podrun.name), worker_python(spec.pod))
    spec, executables = with_executables(replace(spec, code=code))
    if not isinstance(spec.job, Program) and spec.job.brings_data:
        from ..staging.find_data import find_data

        data = find_data(spec.job, lambda text: print(f"podrun: {text}", file=sys.stderr, flush=True))
        spec = replace(spec, data=data, job=data.on_hosts(spec.job, home))
    return spec, (project, podrun, *executables)


def with_executables(spec: RunSpec) -> tuple[RunSpec, tuple[Bundle, ...]]:
    """Add the executables that `podrun compile` has stored for this job. Prints on stderr why they are not sent.

    Returns:
        The spec with the path of their list on the hosts, and the bundle to send; no bundle if the hosts are this
        machine.
    """
    if isinstance(spec.job, Program):
        return spec, ()
    return add_executables(replace(spec, stored=str(stored_executables(spec.job, spec.pod.slice.name).path)))


def add_executables(spec: RunSpec) -> tuple[RunSpec, tuple[Bundle, ...]]:
    """Add the executables in the list `spec.stored`, as `with_executables` does, to a run that has waited in a queue."""
    spec, stored = replace(spec, executables=""), Stored(Path(spec.stored))
    if not spec.stored or not stored.path.exists():
        return spec, ()
    if not spec.pod.traits.needs_staging:
        return replace(spec, executables=str(stored.path)), ()
    bundle = stored.bundle()
    if isinstance(bundle, str):
        print(f"podrun: the compiled programs are not sent to the hosts: {bundle}", file=sys.stderr, flush=True)
        return spec, ()
    folder = bundle_folder(spec.pod.home, bundle.name)
    return replace(spec, executables=f"{folder}/{stored.path.name}"), (bundle,)


def _name_private(names: Sequence[str]) -> None:
    shown_names = first_names([*map(shown, names)], 5)
    print(
        f"podrun: not sent to the hosts, because they contain keys or passwords: {shown_names}; `!{shown(names[0])}` in "
        f"{IGNORE_FILE} sends such a file anyway, and `secrets:` in the pod file passes single values",
        file=sys.stderr,
        flush=True,
    )

"""`podrun ssh`: open a shell on one host of a pod, with podrun's own connection settings."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress

from podrun.runtime.contract import UserError

from ..inventory.pod_request import PodRequest
from ..pod.errors import HostError
from ..pod.fold import fold
from ..pod.pod import Host, Pod
from ..request.hosts import select_hosts
from ..rundir.queues import load_queue
from ..rundir.runs import RunDirectory


def ssh(where: PodRequest, run: str | None, host: str, argv: tuple[str, ...]) -> int:
    """Replace this process by OpenSSH's client, so that podrun exits with the client's code. Raises UserError."""
    pod, directory = select_hosts(where, run, "ssh")
    if pod.queue_job:
        queue = load_queue(pod.transport)
        shell = queue.shell(pod.queue_job, find_host(pod, host, directory).address)
        raise UserError(f"the hosts are nodes of the {queue.title} job {pod.queue_job}; `{shell}` opens a shell there")
    if not pod.traits.has_login:
        raise UserError(f"the pod is {pod.traits.reached}: there is nothing to log in to")
    chosen = find_host(pod, host, directory)
    if shutil.which("ssh") is None:
        raise UserError("there is no `ssh` on this machine; install OpenSSH's client (Debian: openssh-client)")
    command = ssh_command(pod, chosen, argv, terminal=sys.stdin.isatty() and sys.stdout.isatty())
    if pod.ssh.known_hosts is not None and pod.ssh.host_keys == "accept-new":
        with suppress(OSError):  # ssh creates known_hosts, but not its folder
            pod.ssh.known_hosts.expanduser().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    sys.stdout.flush()
    os.execvp(command[0], command)


def find_host(pod: Pod, text: str, run: RunDirectory | None) -> Host:
    """Return the host that `text` names: by its name, a unique beginning of it, its address, or the number of a JAX process.

    `run` says which host has which process; without it each host has one. Raises UserError.
    """
    if same := [host for host in pod.hosts if text in (host.name, host.address)]:
        return same[0]
    if text.isdigit() and (host := _by_process(pod, int(text), run)):
        return host
    begins = [host for host in pod.hosts if host.name.startswith(text)]
    if len(begins) == 1:
        return begins[0]
    names = fold(host.name for host in begins or pod.hosts)
    if begins:
        raise UserError(f"{text!r} is the beginning of {len(begins)} hosts: {names}; give more of the name")
    raise UserError(f"there is no host {text!r}; the pod has {names}")


def _by_process(pod: Pod, process: int, run: RunDirectory | None) -> Host | None:
    """Return the host of a process. Without a run, each host has one process."""
    start = run.start() if run else None
    if start is not None:
        names = [name for name, processes in start["hosts"].items() if process in processes]
        return next((host for host in pod.hosts if host.name in names), None)
    return pod.hosts[process] if process < len(pod.hosts) else None


def ssh_command(pod: Pod, host: Host, argv: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the command line of OpenSSH's client. Raises UserError for a malformed address."""
    from ..transport.ssh.channel import command_line
    from ..transport.ssh.errors import Unreachable
    from ..transport.ssh.transport import split_target

    try:
        user, name, port = split_target(host.address)
    except Unreachable as error:
        raise UserError(str(HostError(host.name, error.reason))) from None
    settings = pod.ssh
    command = ["ssh"]
    if settings.config is not None:
        command += ["-F", str(settings.config.expanduser())]
    if user or settings.user:
        command += ["-l", str(user or settings.user)]
    if port or settings.port:
        command += ["-p", str(port or settings.port)]
    if settings.key is not None:
        command += ["-i", str(settings.key.expanduser())]
    if settings.jump is not None:
        command += ["-J", settings.jump]
    if settings.known_hosts is not None:
        command += ["-o", f"UserKnownHostsFile={settings.known_hosts.expanduser()}"]
    if settings.host_keys == "accept-new":
        command += ["-o", "StrictHostKeyChecking=accept-new"]
    if argv and terminal:
        command.append("-t")
    command += ["--", name]
    return [*command, os.fsdecode(command_line(argv))] if argv else command

"""Build the shell commands that start the agent in a container of docker or podman, pull its image, and end it. PURE.

Each command of the agent has a container of its own, with its own PID namespace, which the kernel ends as a whole. The
commands are scripts for the host's shell, because only there are the user's ids and home directory known.

Sources: https://docs.docker.com/reference/cli/docker/container/run/,
https://docs.podman.io/en/latest/markdown/podman-run.1.html.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from ...agent.base.protocol import ENV_RUNS_ALIVE
from ...pod.container import Container, ContainerEngine

LABEL_HOST, LABEL_RUN = "podrun.host", "podrun.run"
"""Labels of containers: all have the name of the host in its pod; the one that holds a run's agent also the run's id."""
SAYS = "podrun: "
"""Prefix of the commands' own error messages, on stderr."""
_STARTING = "10m"
"""Time that a container may need from its creation to its start."""
NOT_INSTALLED = "is not in the PATH of a login"
NO_MOUNT = "cannot be mounted: there is no such file or folder"
NOT_MADE = "cannot be made: "
NOT_REMOVED = "containers of this run cannot be removed: "
ROOTLESS = "runs rootless"

_DEVICES = {
    "cpu": "",
    # Access to /dev/accel* or /dev/vfio needs more than the device files: pinned memory, and rights to map them.
    "tpu": 'set -- --privileged; [ $podman ] || set -- "$@" --ulimit=memlock=-1',
    "cuda": "if [ $podman ]; then set -- --device=nvidia.com/gpu=all; else set -- --gpus=all --ulimit=memlock=-1; fi; "
    '[ ! -d /dev/infiniband ] || set -- "$@" --device=/dev/infiniband',
}
"""What gives a container the accelerators, by JAX platform."""

# Files in the folders must belong to the user. docker's daemon is root, so it is told the user's ids, and the groups that may
# give access to files and devices; podman of an ordinary user maps the user to the same id inside.
_USER = (
    'uid=$(id -u); if [ -z "$podman" ] || [ $uid = 0 ]; then set -- "$@" --user=$uid:$(id -g); '
    'for group in $(id -G); do set -- "$@" --group-add=$group; done; '
    'else set -- "$@" --userns=keep-id; [ "$(id -G)" = "$(id -g)" ] || set -- "$@" --group-add=keep-groups; fi; '
    '[ $podman ] || set -- "$@" --userns=host'
)

# docker's 64 MiB are too few for NCCL and data loaders; half of the memory is the default of a Linux system.
_SHM = (
    "while read -r name memory unit; do [ $name != MemTotal: ] || break; done < /proc/meminfo; "
    'set -- "$@" --shm-size=$((memory / 2))k'
)

_FIXED = (
    "--rm",
    "--interactive",
    "--init",
    "--net=host",
    # An agent ends by itself 60 s after `launch.stop_grace`, which is unknown where agents start before the job is read.
    "--stop-timeout=600",
    "--log-driver=none",  # the frames on stdout must not be stored once more, checkpoints among them
    "--security-opt=label=disable",  # SELinux would keep the container from the mounted folders
    *(f"--env={name}" for name in ("HOME", "USER", "LOGNAME", "SSH_CONNECTION", ENV_RUNS_ALIVE)),  # those that are set
)


def start(
    container: Container, platform: str, folders: Sequence[str], host: str, argv: Sequence[str], run: str | None = None
) -> str:
    """Return the shell script that runs `argv` in a new container, which ends with it.

    Args:
        container: the image, and how to start it. A leading `~/` of a mount is the login directory. Its mounts take the
            place of podrun's own where both have the same path in the container.
        platform: JAX platform of the host: cpu, cuda or tpu.
        folders: folders on the host that are made if they are missing, and mounted at the same path.
        host: name of the host, a label of the container.
        argv: command in the image. A leading `~/` is the login directory.
        run: id of the run whose agent the command starts, another label; None: it starts none.
    """
    labels = [f"{LABEL_HOST}={host}", *([f"{LABEL_RUN}={run}"] if run is not None else [])]
    words = [*_FIXED, *(f"--label={label}" for label in labels)]
    shm = any(option.startswith(("--ipc", "--shm-size")) for option in container.options)
    return _line(
        [
            _engine(container),
            "set --",
            *([devices] if (devices := _DEVICES[platform]) else []),
            _USER,
            *([] if shm else [_SHM]),
            'fail() { echo "' + SAYS + '$1" >&2; exit 125; }',
            "targets=:",
            *(_mount(mount) for mount in container.mounts),
            *(_own_volume(folder) for folder in ("~", *folders)),
            'set -- "$@" --workdir="$HOME"',
            f'exec $engine run "$@" {_words(words)} --entrypoint={_quote(argv[0])} '
            + _words([*container.options, container.image, *argv[1:]]),
        ]
    )


def pull(container: Container, host: str) -> str:
    """Return the shell script that pulls the image if it is not on the host. Its output says how far it is."""
    image = shlex.quote(container.image)
    rootless = f"echo '{SAYS}{container.engine} {ROOTLESS}'; exit 125"
    return _line(
        [
            _engine(container),
            "exec 2>&1",
            f"[ $podman ] || case $($engine info --format '{{{{.SecurityOptions}}}}') in *rootless*) {rootless};; esac",
            _tidy(host),
            f"$engine image inspect {image} >/dev/null 2>&1 && exit",
            f"echo {shlex.quote(f'{container.engine} pulls {container.image}')}",
            f"exec $engine pull {image}",
        ]
    )


def end(container: Container, run: str, host: str) -> str:
    """Return the shell script that ends the run's containers on a host, and confirms that they are gone."""
    filters = f"--filter=label={shlex.quote(f'{LABEL_RUN}={run}')} --filter=label={shlex.quote(f'{LABEL_HOST}={host}')}"
    return _line(
        [
            _engine(container),
            f'left() {{ ids=$($engine ps --all --quiet {filters}) || exit 125; [ "$ids" ]; }}',
            "tries=0",
            "while left && [ $tries -lt 10 ]",
            "do $engine kill $ids >/dev/null 2>&1",  # `podman rm` alone gives the container its whole --stop-timeout
            "$engine rm --force $ids >/dev/null 2>&1 || sleep 1",  # it may be ending just now
            "tries=$((tries + 1))",
            "done",
            f"if left; then echo {SAYS}{NOT_REMOVED}$ids >&2; exit 125; fi",
        ]
    )


def tidy(container: Container, host: str) -> str:
    """Return the shell script that removes containers of dead agents, and sets ENV_RUNS_ALIVE to the runs of all others.

    The others are the agents in containers of this engine, and those among the host's processes, which a container does not
    see: their command lines end with `run RUN`.

    An engine removes a container at its end, but not if it was killed itself, or the machine lost its power. podman, which
    has no daemon, then takes the container for a running one.
    """
    runs = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '[:cntrl:]' '[#*]' | grep -ao '[.]pyz#run#[^#]*' | sed 's/.*#//'"
    alive = f'export {ENV_RUNS_ALIVE}="${ENV_RUNS_ALIVE} $({runs})"'
    return _line([_engine(container), _tidy(host), alive])


def _tidy(host: str) -> str:
    here = f"--filter=label={shlex.quote(f'{LABEL_HOST}={host}')}"
    shown = f'{{{{.State.Pid}}}} {{{{index .Config.Labels "{LABEL_RUN}"}}}}'
    alive = f'{ENV_RUNS_ALIVE}="${ENV_RUNS_ALIVE} ${{state#* }}"'
    return _line(
        [
            f"{ENV_RUNS_ALIVE}=",
            f"for id in $($engine ps --quiet {here} 2>/dev/null)",
            f"do state=$($engine inspect --format '{shown}' $id 2>/dev/null) || continue",
            'if [ -z "$podman" ] || [ -d /proc/${state%% *} ]',
            f"then {alive}",
            "else $engine rm --force $id >/dev/null 2>&1",
            "fi",
            "done",
            f"$engine container prune --force {here} --filter=until={_STARTING} >/dev/null 2>&1",
        ]
    )


def sh(*scripts: str) -> tuple[str, ...]:
    """Return the command that runs the scripts one after the other; an error that is not handled ends the first."""
    return ("sh", "-c", _line(scripts))


def _line(commands: Sequence[str]) -> str:
    """Join commands to one line, because csh as a login shell has no quoted words of several lines."""
    return "; ".join(commands)


def _engine(container: Container) -> str:
    """Return the commands that set `engine`, and `podman` if it is podman, which many hosts install as `docker` as well."""
    engine = container.engine
    missing = f"echo '{SAYS}{engine} {NOT_INSTALLED}' >&2; exit 127"
    return _line(
        [
            f"engine={engine}",
            "podman=",
            f"command -v $engine >/dev/null || {{ {missing}; }}",
            "case $($engine --version 2>/dev/null) in podman*) podman=1;; esac",
        ]
    )


def _mount(mount: str) -> str:
    source, _, inside = mount.partition(":")
    target, colon, flags = inside.partition(":")
    source, target = _quote(source), _quote(_normal(target or source))
    return _line(
        [
            # docker would make a missing folder, which then belongs to root
            f"[ -e {source} ] || fail {source}{shlex.quote(f' {NO_MOUNT}')}",
            f'set -- "$@" --volume={source}:{target}{colon}{shlex.quote(flags) if flags else ""}',
            f"targets=$targets{target}:",
        ]
    )


def _own_volume(folder: str) -> str:
    """Return the commands that make a folder, and mount it at the same path unless something is mounted there already."""
    word = _quote(folder)
    made = f'why=$(mkdir -p {word} 2>&1) || fail {word}{shlex.quote(f" {NOT_MADE}")}"$why"'
    mounted = f'set -- "$@" --volume={word}:{word}; targets=$targets{word}:'
    return f"case $targets in *:{word}:*) ;; *) {made}; {mounted};; esac"


def _normal(path: str) -> str:
    """Return the path as engines compare paths: without a slash at its end, and without double ones."""
    return posixpath.normpath(path).replace("//", "/")


def _words(words: Sequence[str]) -> str:
    return " ".join(map(_quote, words))


def _quote(word: str) -> str:
    """Quote a word for sh. `~`, or a leading `~/`, becomes the login directory."""
    if word == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(word[2:])}' if word.startswith("~/") else shlex.quote(word)


def folders_of(home: str, workdir: str | None) -> list[str]:
    """Return the folders to mount besides the login directory: podrun's, and that of results unless it is a bucket."""
    folders = [folder for folder in (home, workdir) if folder and folder.startswith("/")]
    return [folder for folder in dict.fromkeys(map(_normal, folders)) if folder != "/"]


DOCKER = ContainerEngine(
    transport="engines.containers.docker_transport:DockerTransport",
    needs="starts containers on hosts that are reached by SSH; in a SLURM job take pyxis or apptainer",
)

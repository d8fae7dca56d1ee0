"""Explain why docker or podman did not start the agent in an image, with remedies. PURE.

The texts are those of docker 20.10 and 28.2, of podman 4.3, and of the runtimes crun 1.8 and runc 1.1. Those of registries
are in https://distribution.github.io/distribution/spec/api/#errors, those about GPUs in
https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html.
"""

from __future__ import annotations

import re

from ...pod.container import Container
from .docker import NO_MOUNT, NOT_INSTALLED, NOT_MADE, NOT_REMOVED, ROOTLESS, SAYS

_LOAD = (
    "the host may have no network: bring the image there by hand, as in `{engine} save {image} | ssh HOST {engine} load`; "
    "behind a proxy, set HTTPS_PROXY for {engine} there"
)
_OTHER_PROCESSOR = (
    "the image is for machines of another kind; build it for the hosts' processor (`{engine} build --platform ...`)"
)
_REASONS = (
    (
        NOT_INSTALLED,
        "{engine} is not installed on it; install it there, or take another `container.engine` in the pod file",
    ),
    (
        NOT_MADE,
        "this user cannot make that folder there; have it made, as in `sudo install -d -o USER FOLDER`, or name another "
        "folder in the pod file: `workdir:` for results, `home:` for podrun's own",
    ),
    (NO_MOUNT, "correct `container.mounts:` in the pod file, or make the folder there"),
    (
        r"permission denied while trying to connect to the [Dd]ocker",
        "this user may not use docker there; run `sudo usermod -aG docker $USER` there and log in again, or take "
        "`engine: podman`, which needs no such right",
    ),
    (
        r"Cannot connect to the Docker daemon|Is the docker daemon running|failed to connect to the docker API",
        "docker's daemon does not run there; start it with `sudo systemctl enable --now docker`",
    ),
    (
        ROOTLESS,
        "its docker daemon runs without root, so containers do not have the host's network; take `engine: podman`",
    ),
    (
        r"no sub[ug]id ranges|keep-id requires additional|insufficient UIDs or GIDs|not be enough IDs available|"
        r"cannot find mappings for user",
        "podman has no user ids for this user's containers; run `sudo usermod --add-subuids 100000-165535 --add-subgids "
        "100000-165535 $USER` and `podman system migrate` there",
    ),
    (
        r'"?newuidmap"?: executable file not found',
        "podman needs newuidmap there; install the package uidmap (or shadow-utils)",
    ),
    (
        r"container-init binary not found|docker-init.*no such file",
        "{engine} lacks its init there; install catatonit (docker: tini)",
    ),
    (
        r"cgroups? in hybrid mode|cgroups?:? .*(not supported|permission denied|read-only)|dbus.*(cgroup|scope)|"
        r"(cannot|unable to|failed to) (apply|set up|create) cgroup|(cgroup|scope).*dbus",
        "{engine} cannot make a cgroup there; with podman, try `options: [--cgroups=disabled]` in the section `container:`",
    ),
    (
        r"setrlimit",
        "{engine} may not set its limits there; give those of the host: `options: [--ulimit=host]` with podman, or "
        "`--ulimit=nofile=1024` and the like",
    ),
    (r"keep-groups", "podman keeps a user's groups only with the runtime crun; install crun there"),
    (
        r"could not select device driver|unknown or invalid runtime name: nvidia|unknown flag: --gpus",
        "docker there has no NVIDIA Container Toolkit; install nvidia-container-toolkit, then run `sudo nvidia-ctk runtime "
        "configure --runtime=docker` and `sudo systemctl restart docker`",
    ),
    (
        r"unresolvable CDI devices|nvidia\.com/gpu=all",
        "podman there does not know its GPUs; install nvidia-container-toolkit and run `sudo nvidia-ctk cdi generate "
        "--output=/etc/cdi/nvidia.yaml`, also after each new driver",
    ),
    (
        r"nvidia-container-cli: .*|nvml error.*",
        "the NVIDIA driver of the host does not work in a container; try `nvidia-smi` on it, and install a newer driver",
    ),
    (
        r"no matching manifest|does not match the (specified|expected) platform|image found .*architecture",
        _OTHER_PROCESSOR,
    ),
    (
        r"short-name .* did not resolve|no unqualified-search registries",
        "podman needs the image's registry: write for example docker.io/library/python:3.12, or localhost/NAME for an image "
        "that was made on the host",
    ),
    (
        r"toomanyrequests|rate limit",
        "the registry refuses more downloads for now; log in there (`{engine} login`), or wait",
    ),
    (
        r"pull access denied|access to the resource is denied|unauthorized|authentication required|(?<!ermission )denied: ",
        "the registry does not give {image} to this user; check the name, and log in on the host (`{engine} login REGISTRY`)",
    ),
    (
        r"manifest unknown|name unknown|not found: manifest|repository .* not found|manifest for .* not found",
        "there is no image {image}; check its name and tag",
    ),
    (
        r"no such host|name resolution|dial tcp|i/o timeout|[Cc]lient\.Timeout|TLS handshake timeout|network is unreachable|"
        r"pinging container registry|connection (refused|reset)",
        f"the registry of {{image}} cannot be reached; {_LOAD}",
    ),
    (
        r"[Nn]o space left on device|not enough space",
        "the disk of {engine}'s images is full there; `{engine} system prune` removes unused ones",
    ),
    (
        r"error while creating mount source path|bind source path does not exist|statfs .*: (no such file|permission denied)|"
        r"invalid volume specification|mkdir .*: (permission denied|read-only)",
        "{engine} cannot mount a folder; see `workdir:` and `container.mounts:` in the pod file (docker's daemon mounts "
        "it as root, to whom a network file system may be closed)",
    ),
    (NOT_REMOVED, "remove them there by hand: `{engine} rm --force ID`"),
)
_OF_THE_IMAGE = (
    (
        r"executable file .*not found|exec: .*(no such file|permission denied)|invoke a command that was not found|"
        r"catatonit.*failed to exec pid1|FATAL tini.*exec .* failed",
        "there is no {python} in the image {image}; name its interpreter with `container.python:` in the pod file",
    ),
    (
        r"podrun needs Python 3\.8 or newer for its agent; this is \S+",
        "{python} of the image {image} is too old; take an image with Python 3.8 or newer (3.11 for a train.yaml), or name "
        "another interpreter in it with `container.python:`",
    ),
)
"""Errors that do not come from the engine, but from its init or from Python."""
_EXEC_FORMAT = re.compile("[Ee]xec format error")
# The engines warn of it also where the host emulates the image's processor, so it is quoted, but is not a reason.
_OTHER_PLATFORM = re.compile(r"platform \(.*\) does not match the (detected host|expected) platform")
_NOISE = re.compile(
    r"^\s*$|^Run '.* --help'|^See '.* --help'|level=(?:warning|info|debug)|^WARN|^Unable to find image|^Emulate Docker CLI"
)
_LEADS = re.compile(
    rf"^(?:{re.escape(SAYS)}|docker: |Error: |WARNING: |Error response from daemon: |time=\S+ level=error msg=)+"
)
ENGINE_FAILED = 125
"""Exit code of the engines for errors of their own. 126 and 127 are those of a command that cannot be started."""
_LENGTH = 300  # characters of the engine's own message


def why_not_started(output: str, code: int | None, container: Container) -> str | None:
    """Return why the engine did not start a command in the image, and what to do; None if it is not to blame.

    Args:
        output: the end of what the engine and the command have printed.
        code: exit code of the engine; None if the connection was lost.
        container: the image, and its engine.
    """
    all_lines = output.splitlines()
    names = {"engine": container.engine, "image": container.image, "python": container.python}
    # first, because an init says it together with the words for an interpreter that is missing
    if processor := [line for line in all_lines if _EXEC_FORMAT.search(line)]:
        warnings = [line for line in all_lines if _OTHER_PLATFORM.search(line)]
        return f"{_OTHER_PROCESSOR.format(**names)} ({_own_words([*warnings, *processor][0])})"
    lines = [line for line in all_lines if not _NOISE.search(line)]
    is_of_engine = code is None or ENGINE_FAILED <= code <= 127
    for pattern, remedy in (*(_REASONS if is_of_engine else ()), *_OF_THE_IMAGE):
        for line in lines:
            if re.search(pattern, line):
                return f"{remedy.format(**names)} ({_own_words(line)})"
    if code is None or not is_of_engine or not lines:
        return None
    return f"{container.engine} cannot start the image {container.image}: {_own_words(lines[-1])}"


def _own_words(line: str) -> str:
    words = _LEADS.sub("", line.strip())
    return words if len(words) <= _LENGTH else f"...{words[-_LENGTH:]}"  # causes come last

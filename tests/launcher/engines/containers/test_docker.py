"""The commands of docker and podman, run with a program in their place that prints them, and their error messages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from podrun.launcher.engines.containers import docker
from podrun.launcher.engines.containers.docker_errors import why_not_started
from podrun.launcher.engines.containers.docker_pull import PullLines
from podrun.launcher.pod.container import Container

GROUPS = dict.fromkeys([os.getgid(), *os.getgroups()])
IDS = [f"--user={os.getuid()}:{os.getgid()}", *(f"--group-add={group}" for group in GROUPS)]
AGENT = ("python3", "-I", "-c", "it's", "~/.podrun/agents/a.pyz", "run", "R1")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with programs docker and podman that print their arguments, one in a line."""
    for name, version in (("docker", "Docker version 28"), ("podman", "podman version 4.3.1")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo {version}; exit; }}\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    (tmp_path / "data").mkdir()
    return tmp_path


def run(home: Path, *scripts: str, programs: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": f"{programs or home}:/usr/bin:/bin"}
    return subprocess.run(docker.sh(*scripts), env=env, capture_output=True, text=True, timeout=20)


def words(home: Path, *scripts: str) -> list[str]:
    done = run(home, *scripts)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start(home: Path, engine: str, platform: str = "cpu", workdir: str = "", **keys: tuple[str, ...]) -> list[str]:
    container = Container(engine, "jax:1", "python3", **keys)
    folders = docker.folders_of("~/.podrun", workdir or f"{home}/runs/new")
    return words(home, docker.start(container, platform, folders, "h0", AGENT, "R1"))


def test_the_command_that_starts_the_agent(home: Path) -> None:
    """Paths are those of the host's user, the workdir is made, and the user's own options come last."""
    given = start(home, "docker", mounts=("~/data:/data:ro", "/usr"), options=("--cpus=2",))
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 2
    assert given == [
        "run",
        *IDS,
        "--userns=host",
        f"--shm-size={memory}k",
        f"--volume={home}/data:/data:ro",
        "--volume=/usr:/usr",
        f"--volume={home}:{home}",
        f"--volume={home}/runs/new:{home}/runs/new",
        f"--workdir={home}",
        *(
            "--rm",
            "--interactive",
            "--init",
            "--net=host",
            "--stop-timeout=600",
            "--log-driver=none",
            "--security-opt=label=disable",
        ),
        *("--env=HOME", "--env=USER", "--env=LOGNAME", "--env=SSH_CONNECTION", "--env=PODRUN_RUNS_ALIVE"),
        *("--label=podrun.host=h0", "--label=podrun.run=R1", "--entrypoint=python3", "--cpus=2"),
        *("jax:1", "-I", "-c", "it's", f"{home}/.podrun/agents/a.pyz", "run", "R1"),
    ]
    assert (home / "runs" / "new").is_dir()


@pytest.mark.parametrize(
    ("workdir", "mounts", "volumes"),
    [
        ("{home}/data", ("{home}/data/",), ["{home}/data/:{home}/data", "{home}:{home}"]),
        ("{home}/data//", ("{home}/data:/{home}/data:ro",), ["{home}/data:{home}/data:ro", "{home}:{home}"]),
        ("{home}", ("~/data",), ["{home}/data:{home}/data", "{home}:{home}"]),
        ("~/data", ("~/",), ["{home}/:{home}"]),
        # the folder of the host that has the same path is not made: nothing would use it
        ("{home}/new", ("/usr:{home}/new",), ["/usr:{home}/new", "{home}:{home}"]),
    ],
)
def test_a_path_in_the_container_is_mounted_once(
    home: Path, workdir: str, mounts: tuple[str, ...], volumes: list[str]
) -> None:
    """The engines refuse a second mount of it in any spelling. The user's mount is the one that stays."""
    given = start(home, "docker", workdir=workdir.format(home=home), mounts=tuple(m.format(home=home) for m in mounts))
    expected = [f"--volume={volume.format(home=home)}" for volume in volumes]
    assert [word for word in given if word.startswith("--volume")] == expected
    assert not (home / "new").exists()


def test_an_interpreter_in_the_home(home: Path) -> None:
    script = docker.start(Container("docker", "jax:1"), "cpu", (), "h0", ("~/my venv/bin/python", "-I"), "R1")
    assert f"--entrypoint={home}/my venv/bin/python" in words(home, script)


def test_a_folder_that_cannot_be_made(home: Path) -> None:
    """docker would make it as root. Here a file is in the way, which stops root too."""
    workdir = f"{home}/docker/results of mine"
    done = run(home, docker.start(Container("docker", "jax:1"), "cpu", [workdir], "h0", AGENT, "R1"))
    assert done.returncode == 125
    assert not done.stdout
    text = why("docker", done.stderr)
    assert "have it made, as in `sudo install -d -o USER FOLDER`, or name another folder in the pod file" in text
    assert f"({workdir} cannot be made: mkdir: " in text
    script = docker.start(Container("docker", "jax:1"), "cpu", [], "h0", AGENT, "R1")
    homeless = run(home / "docker", script, programs=home)
    assert f"({home}/docker cannot be made: mkdir: " in why("docker", homeless.stderr)


def test_runs_of_agents_without_a_container_are_alive(home: Path) -> None:
    """A container of the command `clean` does not see them: they are processes of the host."""
    agent = ["sh", "-c", "echo; read line", "~/.podrun/agents/a.pyz"]
    with (
        subprocess.Popen([*agent, "run", "R7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
        subprocess.Popen([*agent, "attach", "R8"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        assert process.stdout and process.stdout.readline() and other.stdout and other.stdout.readline()
        (home / "docker").write_text("#!/bin/sh\n[ $1 != ps ] || exit 1\n")
        alive = words(home, docker.tidy(Container("docker", "jax:1"), "h0"), "printenv PODRUN_RUNS_ALIVE")
        process.communicate(b"\n")
        other.communicate(b"\n")
    runs = " ".join(alive).split()
    assert "R7" in runs
    assert "R8" not in runs


@pytest.mark.parametrize(
    ("engine", "platform", "options"),
    [
        ("docker", "cuda", ["--gpus=all", "--ulimit=memlock=-1"]),
        ("podman", "cuda", ["--device=nvidia.com/gpu=all"]),
        ("docker", "tpu", ["--privileged", "--ulimit=memlock=-1"]),
        ("podman", "tpu", ["--privileged"]),
        ("docker", "cpu", []),
    ],
)
def test_accelerators(home: Path, engine: str, platform: str, options: list[str]) -> None:
    of_devices = ("--gpus", "--device=nvidia", "--privileged", "--ulimit")
    assert [word for word in start(home, engine, platform) if word.startswith(of_devices)] == options


def test_a_docker_that_is_podman(home: Path) -> None:
    """Many hosts have podman under the name of docker."""
    (home / "podman").rename(home / "docker")
    given = start(home, "docker", "cuda")
    assert "--device=nvidia.com/gpu=all" in given
    assert "--userns=host" not in given


@pytest.mark.parametrize("option", ["--ipc=host", "--shm-size=8g"])
def test_shared_memory_of_the_user(home: Path, option: str) -> None:
    given = start(home, "podman", options=(option,))
    assert [word for word in given if word.startswith(("--ipc", "--shm-size"))] == [option]


PULL = b"""\
1: Pulling from lab/jax
0123456789ab: Already exists
fedcba987654: Pulling fs layer
fedcba987654: Download complete
fedcba987654: Pull complete
Copying blob sha256:aa88b398cd7c
Status: Downloaded newer image
"""


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_progress_of_a_pull(size: int) -> None:
    """One line for each complete layer, however the output arrives."""
    lines = PullLines()
    shown = b"".join(lines.feed(PULL[start : start + size]) for start in range(0, len(PULL), size))
    assert shown.decode().splitlines() == [
        "1: Pulling from lab/jax",
        "1 of 1 layers of the image",
        "2 of 2 layers of the image",
        "Status: Downloaded newer image",
    ]


def why(engine: str, output: str, code: int = 125) -> str:
    return str(why_not_started(output, code, Container(engine, "a.io/jax:1", "/opt/python")))


@pytest.mark.parametrize(
    ("engine", "output", "remedy"),
    [
        # printed by the engines themselves, with what is missing taken away
        ("docker", "podrun: docker is not in the PATH of a login", "is not installed on it"),
        (
            "docker",
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get "
            '"http://%2Fvar%2Frun%2Fdocker.sock/v1.24/images/x/json": dial unix: connect: permission denied',
            "sudo usermod -aG docker",
        ),
        (
            "docker",
            "docker: Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?",
            "sudo systemctl enable --now docker",
        ),
        (
            "docker",
            "Unable to find image 'a.io/jax:1' locally\ndocker: Error response from daemon: Get \"https://a.io/v2/\": dial "
            "tcp: lookup a.io on 10.0.0.53:53: no such host\n\nRun 'docker run --help' for more information",
            "docker save a.io/jax:1 | ssh HOST docker load",
        ),
        (
            "docker",
            'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
            "nvidia-ctk runtime configure",
        ),
        (
            "docker",
            'docker: Error response from daemon: invalid mount config for type "bind": bind source path does not exist: /x',
            "see `workdir:` and `container.mounts:`",
        ),
        (
            "docker",
            "[FATAL tini (7)] exec /opt/python failed: No such file or directory",
            "no /opt/python in the image",
        ),
        (
            "podman",
            "ERROR (catatonit:2): failed to exec pid1: No such file or directory",
            "no /opt/python in the image",
        ),
        (
            "podman",
            'Error: short-name "jax:1" did not resolve to an alias and no unqualified-search registries are defined',
            "docker.io/library/",
        ),
        (
            "podman",
            "Trying to pull a.io/jax:1...\nError: initializing source docker://a.io/jax:1: pinging container registry a.io: "
            'Get "https://a.io/v2/": dial tcp: lookup a.io on 10.0.0.53:53: no such host',
            "podman save a.io/jax:1",
        ),
        (
            "podman",
            'time="2026-01-01T00:00:00Z" level=error msg="cannot find UID/GID for user u: no subuid ranges found for user '
            '\\"u\\" in /etc/subuid"\nError: keep-id requires additional UIDs or GIDs defined in /etc/subuid',
            "--add-subuids",
        ),
        ("podman", "Error: statfs /nonono: no such file or directory", "`container.mounts:`"),
        (
            "podman",
            "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
            "nvidia-ctk cdi generate",
        ),
        ("podman", "Error: OCI runtime error: crun: cgroups in hybrid mode not supported", "--cgroups=disabled"),
        (
            "podman",
            "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied",
            "options: [--ulimit=host]",
        ),
        (
            "podman",
            "Error: container-init binary not found on the host: stat /usr/libexec/podman/catatonit",
            "catatonit",
        ),
        (
            "podman",
            "podrun needs Python 3.8 or newer for its agent; this is 3.6.9",
            "/opt/python of the image a.io/jax:1 is too old",
        ),
        # https://github.com/NixOS/nixpkgs/issues/215332
        (
            "podman",
            'Error: command required for rootless mode with multiple IDs: exec: "newuidmap": executable file not found',
            "install the package uidmap",
        ),
        # https://github.com/containers/podman/issues/4921
        ("podman", "Error: there might not be enough IDs available in the namespace (requested 0:42)", "--add-subuids"),
        # https://docs.docker.com/docker-hub/usage/, https://distribution.github.io/distribution/spec/api/#errors
        (
            "docker",
            "Error response from daemon: toomanyrequests: You have reached your pull rate limit.",
            "docker login",
        ),
        (
            "docker",
            "Error response from daemon: pull access denied for jax, repository does not exist or may require 'docker "
            "login': denied: requested access to the resource is denied",
            "docker login REGISTRY",
        ),
        (
            "docker",
            "Error response from daemon: manifest for jax:2 not found: manifest unknown",
            "check its name and tag",
        ),
        ("docker", "no matching manifest for linux/arm64/v8 in the manifest list entries", "build --platform"),
        ("docker", "write /var/lib/docker/tmp/x: no space left on device", "docker system prune"),
        # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html
        (
            "docker",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
            "try `nvidia-smi` on it",
        ),
    ],
)
def test_an_engine_that_refuses(engine: str, output: str, remedy: str) -> None:
    """The remedy comes first, then the engine's own words without its prefixes."""
    text = why(engine, output)
    assert remedy in text
    assert "Error response" not in text
    assert not text.endswith("(Run 'docker run --help' for more information)")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        # docker 28.2
        (
            "WARNING: The requested image's platform (linux/arm64/v8) does not match the detected host platform "
            "(linux/amd64/v3) and no specific platform was requested\n"
            "[FATAL tini (7)] exec /opt/python failed: Exec format error",
            "The requested image's platform (linux/arm64/v8) does not match the detected host platform (linux/amd64/v3) "
            "and no specific platform was requested",
        ),
        # podman 4.3 with and without --init
        (
            "ERROR (catatonit:2): failed to exec pid1: Exec format error",
            "ERROR (catatonit:2): failed to exec pid1: Exec format error",
        ),
        (
            '{"msg":"exec container process `/opt/python`: Exec format error","level":"error"}',
            '{"msg":"exec container process `/opt/python`: Exec format error","level":"error"}',
        ),
        ("exec /opt/python: exec format error", "exec /opt/python: exec format error"),
    ],
)
def test_an_image_for_another_processor(output: str, words: str) -> None:
    """The exit code is that of the init, 1."""
    text = why("docker", output, 1)
    assert text == (
        "the image is for machines of another kind; build it for the hosts' processor (`docker build --platform ...`) "
        f"({words})"
    )


def test_an_image_that_the_host_emulates() -> None:
    """The engine warns of its platform as well, but the image has started, so something else went wrong."""
    warning = "WARNING: image platform (linux/arm64/v8) does not match the expected platform (linux/amd64)\n"
    assert why_not_started(f"{warning}Killed", 1, Container("podman", "a", "b")) is None
    assert "no /opt/python in the image" in why("podman", f"{warning}exec: /opt/python: no such file or directory", 127)


def test_an_error_that_is_not_known() -> None:
    """It is the engine's if its exit code says so; otherwise it is the agent's, whose words may be the same."""
    output = "Error: something new\n\nRun 'docker run --help' for more information"
    assert why("docker", output) == "docker cannot start the image a.io/jax:1: something new"
    assert why_not_started("No space left on device", 1, Container("docker", "a", "b")) is None
    assert why_not_started("", 125, Container("docker", "a", "b")) is None

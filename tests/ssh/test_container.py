"""Workers in a container image, on real hosts: the agent outside, all that it promises as ever."""

from __future__ import annotations

import os

import pytest

from ..conftest import Sandbox
from ..containers import PYTHON, Image, make_image
from ..hosts import wait_until
from .pod import PodSandbox
from .processes import is_pid_inside, wait_for_start
from .results import log_of, newest


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return make_image(tmp_path_factory.mktemp("image") / "root")


def write_pod(pod: PodSandbox, of: Image, hosts: list[str], **keys: object) -> str:
    container = {
        "engine": "apptainer",
        "image": str(of.path),
        "python": PYTHON,
        "mounts": of.mounts,
        "options": ["--userns"],  # root's own capabilities may be fewer than it asks for
        **keys,
    }
    path = f"{of.engine}:{os.environ['PATH']}"
    cache = str(pod.path / "xla")  # /tmp is mounted, the home is not
    env = {"PATH": path, "OF_BOTH": "pod", "JAX_COMPILATION_CACHE_DIR": cache}
    return pod.write_pod(hosts, python="python3", container=container, env=env)


SHOW = """\
import os, sys
print(os.path.exists("/etc/image"), sys.prefix, os.getpid() == int(os.environ["PODRUN_MAIN_PID"]))
print({n: os.environ.get(n) for n in ("OF_IMAGE", "OF_BOTH", "OF_JOB", "APPTAINERENV_OF_JOB")})
print(sys.argv[1:], os.path.basename(os.getcwd()))
"""


def test_a_program_runs_in_the_image(pod: PodSandbox, image: Image) -> None:
    """It has the image's files and variables, podrun's go before them, and its arguments arrive unchanged."""
    (pod.path / "show.py").write_text(SHOW)
    option = write_pod(pod, image, ["h0", "h1"])
    done = pod.podrun(option, "launch.env.OF_JOB=a b", "--", "python", "show.py", "it's", "$HOME", "")
    assert done.returncode == 0, done.stderr + done.stdout
    for host in ("h0", "h1"):
        lines = log_of(newest(pod), host)
        assert lines == [
            "True /opt/image True",
            str({"OF_IMAGE": "image", "OF_BOTH": "pod", "OF_JOB": "a b", "APPTAINERENV_OF_JOB": None}),
            "[\"it's\", '$HOME', ''] code",
        ]


@pytest.mark.long
def test_training_in_the_image(pod: PodSandbox, image: Image) -> None:
    """The losses of one device; the same command goes on. The workdir is made, and mounted, without being named."""
    option = write_pod(pod, image, ["h0", "h1"])
    done = pod.podrun(option, "--workdir", str(pod.path / "shared/new/first"), "small.yaml", "checkpoint.every=3")
    assert done.returncode == 0, done.stderr + done.stdout
    simulated = Sandbox(pod.path).podrun("--slice=cpu-1x1", "--simulate", "--workdir=simulated", "small.yaml")
    assert simulated.returncode == 0, simulated.stderr
    assert pod.losses("shared/new/first") == pytest.approx(pod.losses("simulated"), rel=1e-5)
    again = pod.podrun(option, "--workdir", str(pod.path / "shared/new/first"), "small.yaml", "steps=8")
    assert again.returncode == 0, again.stderr
    assert "resumed from the checkpoint of step 6" in again.stdout


def test_the_first_cause_and_nothing_left(pod: PodSandbox, image: Image) -> None:
    """An exception in the image ends all within seconds; its code and message come through the engine."""
    (pod.path / "fails.py").write_text(
        "import os, sys, time\nif os.environ['PODRUN_PROCESS_ID'] == '1':\n    raise ValueError('boom')\ntime.sleep(100)\n"
    )
    option = write_pod(pod, image, ["h0", "h1"])
    done = pod.podrun(option, "--", "python", "fails.py")
    assert done.returncode == 1
    assert "failed: h1 (process 1): ValueError: boom (fails.py:3) [exit code 1]" in done.stderr.splitlines()[-1]
    assert not leftovers(pod)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop", "agent"])
def test_nothing_is_left(pod: PodSandbox, image: Image, how: str) -> None:
    """Neither after a stop of a program that ignores signals, nor after the agent was killed."""
    up = pod.path / "up"  # /tmp is mounted
    (pod.path / "ignores.py").write_text(
        "import signal, subprocess, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"subprocess.Popen(['sleep', '1000'], start_new_session=True)\nopen({str(up)!r}, 'w').close()\ntime.sleep(1000)\n"
    )
    option = write_pod(pod, image, ["h0"])
    run = pod.run(option, "launch.stop_grace=1", "--", "python", "ignores.py")
    wait_for_start(run, 1)
    wait_until(up.exists, "the program")
    assert leftovers(pod)
    if how == "stop":
        assert pod.podrun("stop").returncode == 0
    else:
        agent = run.agent("h0")
        next(p for p in pod.hosts.processes("h0") if "agents/" in p.args and is_pid_inside(p, agent)).kill()
    assert run.end() != 0
    wait_until(lambda: not leftovers(pod), "an end of all")


def leftovers(pod: PodSandbox) -> list[str]:
    """Processes of the hosts that are the engine's, or in the image."""
    words = ("apptainer", "starter", "Apptainer", "ignores.py", "fails.py", "sleep 1000")
    found = (p.args for name in pod.hosts.names for p in pod.hosts.processes(name))
    return [args for args in found if any(word in args for word in words) and "sshd" not in args]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"image": "/no/such.sif"},
            "cannot start {python} of the image /no/such.sif: apptainer ended with exit code 255",
        ),
        ({"python": "/no/python"}, "cannot start /no/python of the image"),
        ({"engine": "singularity"}, "singularity cannot be started: No such file or directory"),
    ],
)
def test_an_image_that_cannot_be_started(pod: PodSandbox, image: Image, keys: dict[str, str], message: str) -> None:
    option = write_pod(pod, image, ["h0"], **keys)
    done = pod.podrun(option, "--", "python", "show.py")
    assert done.returncode == 69
    assert message.format(python=PYTHON) in done.stderr
    assert "try it there by hand: " in done.stderr


@pytest.mark.long
def test_check(pod: PodSandbox, image: Image) -> None:
    """The packages are those of the image."""
    done = pod.podrun("check", write_pod(pod, image, ["h0", "h1"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/opt/image/bin/python" in done.stdout
    assert "jax 0." in done.stdout
    broken = pod.podrun("check", write_pod(pod, image, ["h0"], image="/no/such.sif"))
    assert broken.returncode == 2
    assert f"the workers' Python cannot be used: {PYTHON} of /no/such.sif does not work: FATAL:" in " ".join(
        broken.stdout.split()
    )

"""Programs of users run as they are, and fail fast: with their own exception, exit code and line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.agent.base.processes import namespaces_work

from ..conftest import Sandbox
from .conftest import processes_of
from .programs import FAILING

LINES = FAILING.read_text().splitlines()
BOOM = next(number for number, line in enumerate(LINES, 1) if "the line that podrun is to name" in line)
NAMELESS = "names of simulated hosts need root and namespaces"
POD = ("--slice", "cpu-2x1", "--simulate")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if text in line)


WAYS = {
    "raise": (1, f"ValueError: boom in raise ({FAILING}:{BOOM})"),
    "before": (1, f"ValueError: boom in before ({FAILING}:{BOOM})"),
    "thread": (1, f"ValueError: boom in thread ({FAILING}:{BOOM})"),
    "hanging_atexit": (1, f"ValueError: boom in hanging_atexit ({FAILING}:{BOOM})"),
    "own_hook": (1, f"ValueError: boom in own_hook ({FAILING}:{BOOM})"),
    "exit": (3, f"exited with code 3 ({FAILING}:{line_of('sys.exit(3)')})"),
    "raise_exit": (4, f"exited with code 4 ({FAILING}:{line_of('raise SystemExit(4)')})"),
    "exit_message": (1, f"cannot go on ({FAILING}:{line_of('cannot go on')})"),
    "os_exit": (9, "exited with code 9"),
    "kill": (137, "was ended by SIGKILL ("),
    "segfault": (139, f"was ended by SIGSEGV (a crash in native code): in {FAILING}:{line_of('string_at(0)')}"),
    "abort": (134, f": in {FAILING}:{line_of('os.abort()')}"),
}
MISTAKE = """\
import podrun
podrun.init("/proc/no/such")
train = podrun.steps(3, {"w": 0.0})
for step in train:
    train.state = {"w": float(step)}
    podrun.report(step, loss=0.5)
"""
JOINED = [("bare", "raise"), ("none", "raise"), ("none", "segfault")]
SLOW = [("bare", "before"), ("bare", "exit"), ("helper", "exit"), ("torch", "raise")]
SLOW += [("none", way) for way in ("thread", "hanging_atexit", "own_hook", "os_exit", "kill")]
SLOW += [("none", way) for way in ("raise_exit", "exit_message", "abort")]
"""Each way to fail once, and each way to join. Whoever has not joined need not import JAX."""


@pytest.mark.parametrize(
    ("join", "way"), [*JOINED, *(pytest.param(*row, marks=pytest.mark.long) for row in SLOW)]
)  # fmt: skip
def test_a_failure_is_named_and_ends_all(sandbox: Sandbox, join: str, way: str) -> None:
    """While the other process waits in a collective, for one that will never come."""
    if join == "torch":
        pytest.importorskip("torch")
    code, what = WAYS[way]
    done = sandbox.podrun(*POD, "--", "python", str(FAILING), join, way)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("podrun: failed: host-1 (process 1): "), done.stdout + done.stderr
    assert what in last
    assert last.endswith(f"[exit code {code}]")
    assert done.returncode == code
    assert processes_of(sandbox) == {}


@pytest.mark.long
def test_a_mistake_with_the_library(sandbox: Sandbox) -> None:
    """Its text, the line of the program and code 2; no traceback of podrun's."""
    (sandbox.path / "train.py").write_text(MISTAKE)
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--", "python", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "(train.py:3)" in done.stderr.splitlines()[-1]
    assert (done.stdout + done.stderr).count("(train.py:3)") == 1  # it is told once
    what = "podrun: failed: host-0 (process 0): workdir /proc/no/such: cannot write there: No such file or directory"
    assert done.stderr.splitlines()[-1].startswith(what)


@pytest.mark.long
def test_a_program_behind_a_shell_script(sandbox: Sandbox) -> None:
    """Python is a child of the worker; once it has joined the pod, it stands for it."""
    script = sandbox.path / "run.sh"
    script.write_text(f'#!/bin/sh\npython {FAILING} "$@"\nexit $?\n')
    script.chmod(0o755)
    done = sandbox.podrun(*POD, "--", "./run.sh", "bare", "exit")
    assert done.returncode == 3
    assert f"host-1 (process 1): {WAYS['exit'][1]}" in done.stderr.splitlines()[-1]


JOINS = """\
import os
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
{join}
mesh = Mesh(jax.devices(), ("data",))
{work}
print("devices", jax.device_count(), jax.local_device_count(), "total", int(total), flush=True)
"""
BARE = "jax.distributed.initialize()"
WITH_ADDRESS = """\
address = "localhost:" + os.environ["MASTER_PORT"]
jax.distributed.initialize(address, int(os.environ["NUM_PROCESSES"]), int(os.environ["PROCESS_ID"]))
"""
WORK = {
    "pmap": "total = jax.pmap(lambda x: jax.lax.psum(x, 'i'), axis_name='i')(jnp.ones(jax.local_device_count()))[0]",
    "nnx": """\
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("data"), out_specs=P())
def add(x):
    return jax.lax.psum(x.sum(), "data")

total = add(jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), np.ones(jax.local_device_count())))
assert int(total) == 4

from flax import nnx
import optax

class Line(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.zeros(()))

model = Line(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)
state = jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(NamedSharding(mesh, P()), np.asarray(x)), nnx.state((model, optimizer))
)
nnx.update((model, optimizer), state)
x = jax.make_array_from_process_local_data(
    NamedSharding(mesh, P("data")), np.full(jax.local_device_count(), 8.0 * jax.process_index(), np.float32)
)

@nnx.jit
def step(model, optimizer, x):
    loss, gradients = nnx.value_and_grad(lambda model: ((model.w[...] - x) ** 2).mean())(model)
    optimizer.update(model, gradients)

step(model, optimizer, x)
total = model.w[...]  # the mean of all examples, those of the other process included
""",
}


@pytest.mark.parametrize(
    ("join", "work"),
    [(WITH_ADDRESS, "pmap"), pytest.param(BARE, "nnx", marks=pytest.mark.long)],
    ids=["address", "nnx"],
)
def test_a_program_sees_all_devices(sandbox: Sandbox, join: str, work: str) -> None:
    """Programs in the manner of public ones: they know nothing of podrun, and some name an address of their own."""
    (sandbox.path / "joins.py").write_text(JOINS.format(join=join, work=WORK[work]))
    done = sandbox.podrun("--slice", "cpu-2x2", "--simulate", "--", "python", "joins.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "devices 4 2 total 4" in done.stdout and "alone" not in done.stdout + done.stderr


def test_a_program_that_is_not_instrumented(sandbox: Sandbox) -> None:
    """Its exit code and the end of its output say why it failed."""
    (sandbox.path / "bad.py").write_text("import sys\nassert 'podrun_program' not in sys.modules\nopen('/no/such')\n")
    for options in (("launch.instrument=false", "--", "python"), ("--", "python", "-I")):
        done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", *options, "bad.py")
        assert done.returncode == 1
        words = "exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: '/no/such'"
        assert words in done.stderr.splitlines()[-1], done.stderr
        assert "bad.py:3) [exit code 1]" in done.stderr.splitlines()[-1]


NARROW = "import sys, tokenize\nsys.path.clear()\n"
"""Beside a tokenize.py of its own."""


@pytest.mark.parametrize(
    ("program", "code", "what"),
    [
        (
            NARROW + "try:\n    sys.exit(3)\nexcept SystemExit:\n    sys.exit(tokenize.code)",
            5,
            "exited with code 5 (own.py:6)",
        ),
        *(
            pytest.param(NARROW + end, code, what, marks=pytest.mark.long)
            for end, code, what in (
                ("raise KeyError(tokenize.code)", 1, "KeyError: 5 (own.py:3)"),
                ("try:\n    sys.exit(3)\nexcept SystemExit:\n    print('caught')", 0, ""),
                ("import os\nos.environ.clear()\nos.chdir('/')\nopen('/no/such')", 1, "FileNotFoundError: "),
            )
        ),
    ],
)
def test_a_program_that_has_changed_what_it_imports(sandbox: Sandbox, program: str, code: int, what: str) -> None:
    """It ends as in plain Python, and podrun names the line."""
    (sandbox.path / "tokenize.py").write_text("code = 5\n")
    (sandbox.path / "own.py").write_text(program)
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--", "python", "own.py")
    assert done.returncode == code, done.stdout + done.stderr
    assert what in done.stderr.splitlines()[-1] if code else "caught" in done.stdout


def test_a_secret_in_an_exception(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the console nor the record has it, however the program writes it; only the program's own output on disk."""
    monkeypatch.setenv("TOKEN", 'hunter"2\\x')
    (sandbox.path / "pod.yaml").write_text("slice: cpu-1x1\ntransport: local\nsecrets: [TOKEN]\n")
    (sandbox.path / "bad.py").write_text(
        "import os\nt = os.environ['TOKEN']\nprint('my', t, flush=True)\nraise KeyError(t, {'t': t}, t[:4] + '\\n' + t[4:])\n"
    )
    done = sandbox.podrun("--pod", "pod.yaml", "--", "python", "bad.py")
    assert done.returncode == 1
    record = "".join(path.read_text() for path in sandbox.path.rglob("events.jsonl"))
    assert "my (secret)" in done.stdout and "KeyError: ('(secret)'" in done.stderr.splitlines()[-1]
    assert "(secret)" in record
    assert "hunter" not in done.stdout + done.stderr + record


def test_what_a_program_finds(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python of podrun, names that others read, two free ports; no variables of another launcher."""
    for name in ("SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "7")
    program = (
        "import os, socket, sys\n"
        "if os.environ['RANK'] == '0':\n"
        "    for port in os.environ['MASTER_PORT'], os.environ['JAX_COORDINATOR_ADDRESS'].rpartition(':')[2]:\n"
        "        socket.create_server(('127.0.0.1', int(port)))\n"
        "others = [name for name in os.environ if name[:3] in ('SLU', 'OMP', 'PMI')]\n"
        "print(sys.executable, others, os.environ['WHERE'])\n"
    )
    (sandbox.path / "look.py").write_text(program)
    done = sandbox.podrun(*POD, "launch.env={WHERE: '{host}/{process_id}'}", "--", "python", "look.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sys.executable} [] host-0/0" in done.stdout


ALONE = """\
import jax
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((jax.device_count(),), ("d",))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, PartitionSpec("d")), lambda i: jax.numpy.arange(8.0)[i])
print(jax.process_count(), jax.device_count(), jax.local_device_count(), float(jax.jit(jax.numpy.sum)(x)), flush=True)
"""
"""A data-parallel program that never calls `jax.distributed.initialize()`."""


def test_a_program_that_never_joins(sandbox: Sandbox) -> None:
    """Without joining, it trains as often as there are processes, which is told twice; `--join` joins it."""
    (sandbox.path / "alone.py").write_text(ALONE)
    done = sandbox.podrun(*POD, "--", "python", "alone.py")
    assert done.returncode == 0
    told = [line for line in (done.stdout + done.stderr).splitlines() if "independent copies" in line]
    assert len(told) == 2 and "runs as 2 independent copies" in told[0] and "with --join they are one" in told[1]
    assert "1 1 1 28.0" in done.stdout

    joined = sandbox.podrun(*POD, "--join", "--", "python", "alone.py")
    assert joined.returncode == 0, joined.stdout + joined.stderr
    assert "2 2 1 28.0" in joined.stdout
    assert not {"independent", "alone"} & set((joined.stdout + joined.stderr).replace(",", " ").split())


APART = """\
import os, sys, time
import jax
import sitecustomize
sitecustomize._jax._ALONE = 0
jax.distributed.initialize()
print(jax.jit(lambda x: x + 1)(jax.numpy.ones(3)))
events = os.path.join(os.environ["PODRUN_DIR"], os.environ["PODRUN_PROCESS_ID"] + ".events")
while os.environ["PODRUN_PROCESS_ID"] == "0" and "so far" not in open(events).read():
    time.sleep(0.05)
if sys.argv[1:] == ["together"]:
    from jax.experimental.multihost_utils import process_allgather
    process_allgather(jax.numpy.ones(3))
"""
"""It computes on its own devices first, and waits until podrun has noticed."""


@pytest.mark.parametrize(("options", "times"), [((), 2), pytest.param(("together",), 1, marks=pytest.mark.long)])
def test_a_program_that_joins_and_computes_alone(sandbox: Sandbox, options: tuple[str, ...], times: int) -> None:
    """It is told so after a while, and again at its end unless it has computed together with others since."""
    (sandbox.path / "apart.py").write_text(APART)
    done = sandbox.podrun(*POD, "--", "python", "apart.py", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in (done.stdout + done.stderr).splitlines() if "on its own devices alone" in line]
    assert len(told) == times and "the 2 processes of this program have joined, but so far each" in told[0], told


UNEQUAL = """\
import jax, numpy as np
from jax.experimental import mesh_utils
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.sharding.Mesh(mesh_utils.create_device_mesh((jax.{devices}(),)), ("data",))
jax.device_put({batch}, NamedSharding(mesh, PartitionSpec("data")))
"""
"""Programs written for one process, of which two join by `--join`."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("devices", "batch", "words"),
    [
        (
            "device_count",
            "np.random.normal(size=(8, 2)).astype(np.float32)",
            "is not the same on each process; seed the random generators alike on all processes, such as by "
            "np.random.seed(0), or let each process pass its own part by jax.make_array_from_process_local_data",
        ),
        (
            "device_count",
            "np.full((8, 2), 0.1)",
            "it is the same, but float64, which JAX compares with its own float32: pass x.astype(np.float32) (",
        ),
        (
            "local_device_count",
            "np.ones(8)",
            "a mesh has all jax.device_count() devices, not jax.local_device_count() (",
        ),
    ],
    ids=["random", "float64", "mesh"],
)
def test_what_a_program_for_one_process_trips_over(sandbox: Sandbox, devices: str, batch: str, words: str) -> None:
    """The last line says what to change, without the numbers of JAX's message."""
    (sandbox.path / "single.py").write_text(UNEQUAL.format(devices=devices, batch=batch))
    done = sandbox.podrun(*POD, "--join", "--", "python", "single.py")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and words in last, last
    assert f"single.py:{4 if 'local' in devices else 5}) [exit code 1]" in last and "Expected" not in last


TORCHRUN = (
    "exec torchrun --nnodes=$NNODES --nproc-per-node=2 "
    "--rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT group.py"
)
GROUP = """\
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
if sys.argv[1:] == [os.environ["RANK"]]:
    raise ValueError("boom")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_torchrun_inside(sandbox: Sandbox) -> None:
    """Its rendezvous c10d tells the hosts apart by their names; a failure names the rank."""
    pytest.importorskip("torch")
    (sandbox.path / "group.py").write_text(GROUP)
    done = sandbox.podrun(*POD, "--", "sh", "-c", TORCHRUN, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 4" in done.stdout
    done = sandbox.podrun(*POD, "--", "sh", "-c", TORCHRUN + " 3", timeout=100)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "ChildFailedError: group.py FAILED; rank 3 ended first, with exit code " in last, (
        last
    )


@pytest.mark.long
def test_what_join_leaves_alone(sandbox: Sandbox) -> None:
    """A single process, children of the program, and programs that join by themselves after the import."""
    (sandbox.path / "alone.py").write_text(ALONE)
    single = sandbox.podrun("--slice", "cpu-1x2", "--simulate", "--join", "--", "python", "alone.py")
    assert "1 2 2 28.0" in single.stdout and "independent" not in single.stdout + single.stderr
    (sandbox.path / "child.py").write_text("def child(queue):\n    import jax\n    queue.put(jax.device_count())\n")
    (sandbox.path / "joins.py").write_text(
        "import multiprocessing, os, subprocess, sys\n"
        "import jax\n"
        "from child import child\n"
        "if __name__ == '__main__':\n"
        "    jax.distributed.initialize()\n"
        "    import podrun\n"
        "    assert podrun.init().num_processes == 2 == jax.process_count() == jax.device_count()\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=child, args=(queue,))\n"
        "    process.start()\n"
        "    assert queue.get(timeout=60) == 1\n"
        "    process.join()\n"
        "    code = 'import jax; print(jax.device_count())'\n"
        "    assert subprocess.check_output([sys.executable, '-c', code], text=True) == '1\\n'\n"
        "    print('all well')\n"
    )
    done = sandbox.podrun(*POD, "--join", "--", "python", "joins.py")
    assert done.returncode == 0 and "all well" in done.stdout, done.stdout + done.stderr


def test_join_is_for_programs(sandbox: Sandbox) -> None:
    (sandbox.path / "train.yaml").write_text("task: regression\nsteps: 2\nbatch_size: 8\n")
    wrong = sandbox.podrun(*POD, "--join", "train.yaml")
    assert wrong.returncode == 2 and "a train.yaml joins the pod by itself" in wrong.stderr
    (sandbox.path / "alone.py").write_text(ALONE)
    wrong = sandbox.podrun(*POD, "--join", "launch.instrument=false", "--", "python", "alone.py")
    assert wrong.returncode == 2 and "launch.join needs launch.instrument" in wrong.stderr


@pytest.mark.long
def test_another_number_of_devices_is_told(sandbox: Sandbox) -> None:
    (sandbox.path / "many.py").write_text(
        "import jax\njax.config.update('jax_num_cpu_devices', 3)\njax.distributed.initialize()\nprint(jax.device_count())\n"
    )
    done = sandbox.podrun(*POD, "--", "python", "many.py")
    told = "JAX has 3 devices in this process, and its part of cpu-2x1 are 1: the program sets jax_num_cpu_devices"
    assert (done.stdout + done.stderr).count(told) == 1


@pytest.mark.long
@pytest.mark.parametrize(("limit", "code"), [(2, 134), (600, 0)])
def test_a_process_that_is_at_work_when_the_others_are_done(sandbox: Sandbox, limit: int, code: int) -> None:
    """They wait for its evaluation or save, up to a limit that is named when it is over."""
    (sandbox.path / "slow.py").write_text(
        "import time\nfrom podrun.runtime import distributed\n"
        f"distributed.SHUTDOWN_LIMIT = {limit}\n"
        f"if distributed.initialize().process_id == 0:\n    time.sleep({600 if limit == 2 else 5})\n    print('saved')\n"
    )
    done = sandbox.podrun(*POD, "--", "python", "slow.py")
    assert done.returncode == code, done.stdout + done.stderr
    if code:
        assert "within JAX's shutdown_timeout_seconds of each other" in done.stderr.splitlines()[-1]
    else:
        assert "saved" in done.stdout


WHO = """\
import os, pathlib, socket, time
name = socket.gethostname()
folder = pathlib.Path(os.environ["WHO"])
(folder / f"{os.environ['RANK']}.part").write_text(name)
(folder / f"{os.environ['RANK']}.part").rename(folder / os.environ["RANK"])
deadline = time.monotonic() + 60
while len(list(folder.glob("[01]"))) < 2 and time.monotonic() < deadline:
    time.sleep(0.02)
names = [(folder / rank).read_text() for rank in "01"]
assert names == ["host-0", "host-1"], names
assert socket.getfqdn() == name, socket.getfqdn()
assert [socket.gethostbyname(other) for other in names] == ["127.0.0.1"] * 2
assert socket.gethostbyname("localhost") == "127.0.0.1"
from podrun import init
init()
import jax
from jax.experimental.multihost_utils import process_allgather
assert sorted(process_allgather(jax.numpy.array(jax.process_index())).tolist()) == [0, 1]
"""


def test_simulated_hosts_have_names_of_their_own(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun's rendezvous (by `getfqdn`) and tensorboardX know hosts by name; each resolves everywhere, and gloo works."""
    if not namespaces_work():
        pytest.fail(NAMELESS) if os.environ.get("CI") == "true" else pytest.skip(NAMELESS)
    (sandbox.path / "who.py").write_text(WHO)
    monkeypatch.setenv("WHO", str(sandbox.path))
    before = socket.gethostname(), Path("/etc/hosts").read_bytes()
    done = sandbox.podrun(*POD, "--", "python", "who.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (socket.gethostname(), Path("/etc/hosts").read_bytes()) == before
    assert "this machine's name" not in done.stdout


def test_shared_names_are_told_where_namespaces_are_not_allowed(sandbox: Sandbox) -> None:
    if not namespaces_work():
        pytest.skip(NAMELESS)
    command = ["setpriv", "--bounding-set=-sys_admin", *sandbox.command, *POD, "--", "true"]
    done = subprocess.run(command, cwd=sandbox.path, env=sandbox.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "all simulated hosts have this machine's name" in done.stdout


FULL = """\
import resource
import numpy as np
import podrun
podrun.init()
for step in (train := podrun.steps(3, {"w": np.zeros(1 << 20)}, save_every=1)):
    train.state = {"w": np.random.default_rng(step).normal(size=1 << 20)}
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
"""
"""After its first step it can write no large file, as on a full disk."""


@pytest.mark.long
def test_a_full_disk_is_told_without_podruns_frames(sandbox: Sandbox) -> None:
    (sandbox.path / "full.py").write_text(FULL)
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--", "python", "full.py")
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and "(process 0): checkpoint 1 cannot be saved in " in last, done.stdout + done.stderr
    assert "File too large; there is none before it" in last
    assert "checkpoint/save.py" not in done.stdout + done.stderr
    assert "(full.py:5)" in done.stdout + done.stderr

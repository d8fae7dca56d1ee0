"""Bad input, through the real command line: each kind gets a short message that says what, where and what to do."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Sandbox

LINES = 15
TRAIN = "train.yaml"
SIMULATE = ("--slice", "cpu-1x1", "--simulate")
BPE = "data.tokenizer={name: bpe, file: tokenizer.json}"


@dataclass(frozen=True)
class Case:
    """A command line, and what its message must contain."""

    name: str
    what: str
    where: str
    remedy: str
    args: tuple[str, ...] = (*SIMULATE, "train.yaml")
    yaml: str | bytes | None = None
    """Instead of the sandbox's train.yaml."""
    files: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


def override(*overrides: str) -> tuple[str, ...]:
    return (*SIMULATE, "train.yaml", *overrides)


def hostfile(name: str, what: str, where: str, remedy: str, text: str, *args: str) -> Case:
    """A mistake in the file hf."""
    return Case(name, what, where, remedy, (*args, "--hostfile", "hf", TRAIN), files={"hf": text})


TRAIN_YAML = [
    Case("unknown key", "there is no such key", "line 3: step:", "mean steps?", yaml="batch_size: 8\n\nstep: 3\n"),
    Case(
        "unknown nested key",
        "there is no such key",
        "line 4: log.evry:",
        "mean log.every?",
        yaml="steps: 3\nbatch_size: 8\nlog:\n  evry: 3\n",
    ),
    Case(
        "key of another section",
        "there is no such key",
        "line 1: learning_rate:",
        "mean optimizer.learning_rate?",
        yaml="learning_rate: 3\nsteps: 3\nbatch_size: 8\n",
    ),
    Case(
        "key of another choice",
        "there is no such key",
        "line 3: data.path:",
        "another choice of data.name; allowed here: name, tokenizer",
        yaml="steps: 3\nbatch_size: 8\ndata: {name: python_source, path: a.txt}\n",
    ),
    Case("wrong type", "(it is 'many')", "line 1: steps:", "a whole number", yaml="steps: many\nbatch_size: 8\n"),
    Case(
        "number where text belongs",
        "(it is 1)",
        "line 3: launch.env.A:",
        "put it in quotes",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {env: {A: 1}}\n",
    ),
    Case(
        "name of a variable",
        "must not be empty, and not contain =",
        "line 3: launch.env.A=B:",
        "the name of an environment variable",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {env: {A=B: x}}\n",
    ),
    Case(
        "NUL",
        "the character \\0",
        "train.yaml: not valid YAML: line 3, column 19",
        "cannot be in a path",
        yaml='steps: 3\nbatch_size: 8\nlaunch: {workdir: "a\\0b"}\n',
    ),
    Case(
        "value where a section belongs",
        "(it is 3)",
        "line 3: log:",
        "must be a section with some of the keys every, ",
        yaml="steps: 3\nbatch_size: 8\nlog: 3\n",
    ),
    Case("required key", "required", "batch_size:", "required, but not given", yaml="steps: 3\n"),
    Case(
        "several mistakes",
        "4 mistakes",
        "line 1: steps: must be greater than 0",
        "mean model.layers?",
        yaml="steps: 0\nbatch_size: 1.5\nmodel: {layer: 2}\nschedule: {name: cos}\n",
        also=(
            "line 2: batch_size: must be a whole number or 'all' (it is 1.5)",
            "'cosine', 'linear' or 'constant' (it is 'cos')",
        ),
    ),
    Case(
        "many mistakes",
        "42 mistakes",
        "line 1: key0:",
        "and 33 more",
        yaml="".join(f"key{n}: {n}\n" for n in range(40)),
    ),
    Case(
        "malformed YAML",
        "not valid YAML",
        "train.yaml: not valid YAML: line 2, column 6",
        "expected ',' or '}'",
        yaml="model: {layers: 1\nsteps: 3\n",
    ),
    Case("tab", "not valid YAML", "line 2, column 1", "spaces, not tabs", yaml="log:\n\tevery: 3\n"),
    Case(
        "alias inside of itself",
        "not valid YAML",
        "train.yaml",
        "one contains itself",
        yaml="log: &a {every: *a}\nsteps: 3\nbatch_size: 8\n",
    ),
    Case(
        "list inside of itself",
        "not valid YAML",
        "train.yaml",
        "one contains itself",
        yaml="steps: 3\nbatch_size: 8\nmodel: {name: 'a:b', options: &a {x: [*a]}}\n",
    ),
    Case(
        "impossible date",
        "cannot be read",
        "train.yaml",
        "in quotes",
        yaml="steps: 3\nbatch_size: 8\nlaunch: {slice: 2026-13-01}\n",
    ),
    Case(
        "duplicated key",
        "'steps' is given twice",
        "line 3, column 1",
        "keep one of them",
        yaml="steps: 3\nbatch_size: 8\nsteps: 4\n",
    ),
    Case("empty file", "is empty", "train.yaml", "`podrun schema` lists the keys", yaml="# nothing\n"),
    Case("not a mapping", "holds a list", "train.yaml", "not `key: value` lines", yaml="- steps: 3\n"),
    Case("binary file", "is not a text file", "train.yaml", "give the train.yaml", yaml=b"\x89PNG\r\n\x1a\n\x00\xff"),
    Case("missing train.yaml", "No such file", "trian.yaml", "mean train.yaml?", args=(*SIMULATE, "trian.yaml")),
    Case(
        "folder as train.yaml", "Is a directory", "cannot read the job", "path of a train.yaml", args=(*SIMULATE, ".")
    ),
    Case("misspelled command", "did you mean slices", "'slice'", "`podrun --help`", args=("slice",)),
    Case("command after its options", "a command comes before", "check", "podrun check", args=("--simulate", "check")),
    Case(
        "a program without dashes",
        "is a program",
        "a.py",
        "-- python a.py",
        args=(*SIMULATE, "a.py"),
        files={"a.py": ""},
    ),
    Case("a program in PATH without dashes", "is a program", "true", "-- true x", args=(*SIMULATE, "true", "x")),
    Case("no program", "no program", "behind the `--`", "`podrun run --help`", args=(*SIMULATE, "--")),
    Case("a program without a name", "has no name", "after `--`", "the program", args=(*SIMULATE, "--", "")),
]

OVERRIDES = [
    Case("malformed", "'steps' on the command line is not", "on the command line", "key.path=value", override("steps")),
    Case("before the file", "steps=3", "cannot read the job", "comes first", (*SIMULATE, "steps=3", "train.yaml")),
    Case(
        "unknown key in override",
        "no such key",
        "command line: model.layer:",
        "model.layers?",
        override("model.layer=3"),
    ),
    Case("below a scalar", "steps is 6", "'steps.x=4' on the command line", "steps=value", override("steps.x=4")),
    Case("value that is no YAML", "expected ',' or ']'", "'steps=[1' on the", "line 1", override("steps=[1")),
    Case(
        "mistake within a section", "(it is 0)", "command line: log.every", "greater than 0", override("log={every: 0}")
    ),
    Case(
        "NaN",
        "(it is nan)",
        "command line: optimizer.learning_rate",
        "finite",
        override("optimizer.learning_rate=.nan"),
    ),
]

WARM = "steps: 9\nbatch_size: 8\nschedule: {warmup_steps: 4}\ndata: {name: text, path: text.txt}\n"
MODEL_AND_SIZES = [
    Case(
        "unknown model",
        "(it is 'gpt3')",
        "model.name",
        "one of gpt2, cnn, mlp, linear, or package.module:a",
        override("model=gpt3"),
    ),
    Case("preset as model", "'gpt2-xl'", "model.name", "model.preset=gpt2-xl?", override("model=gpt2-xl")),
    Case("plugin", "(it is 'a:b:c')", "model.name", "must be package.module:attribute", override("model=a:b:c")),
    Case(
        "heads",
        "width 32 is not divisible by heads 5",
        "line (model.heads): model",
        "30 or 35",
        override("model.heads=5"),
    ),
    Case("steps", "warmup_steps 4 must", "command line (steps): sch", "fewer", override("steps=3"), yaml=WARM),
    Case(
        "keys of a choice",
        "1 mistake",
        "line 3: model.heads, context: there",
        "name, layers,",
        override("model.name=mlp"),
    ),
    Case("no section", "must be a section", "command line: sample", "sample.tokens=0", override("sample=null")),
    Case("warmup", "schedule.warmup_steps 6", "must be below steps 6", "fewer", override("schedule.warmup_steps=6")),
    Case("final", "final 0.1 is above", "optimizer.learning_rate 0.001", "lower one", override("schedule.final=0.1")),
    Case("batch", "not divisible by 3 devices", "batch_size 8", "6 or 9", ("-s", "cpu-1x3", *override()[2:])),
    Case("small batch", "too small for 16", "batch_size 8", "batch_size=16", ("-s", "cpu-2x8", *override()[2:])),
    Case("parts", "by 1 device x accumulate 3", "batch_size 8", "6 or 9", override("accumulate=3")),
]

CLASSIFY = "task: classification\ndata: digits\nsteps: 6\nbatch_size: 8\n"
LOGISTIC = "task: logistic_regression\nsteps: 6\n"


def parallel(name: str, what: str, where: str, remedy: str, text: str, *also: str, slice: str = "cpu-2x4") -> Case:
    """A job that `text` gives, on a slice of eight devices."""
    return Case(name, what, where, remedy, ("-s", slice, "--simulate", TRAIN), yaml=text, also=also)


PARALLEL = [
    parallel(
        "unknown strategy",
        "one of pmap, jit, explicit, shard_map, single, ensemble, or package.module:attribute",
        "line 5: parallel.name:",
        "(it is 'hogwild')",
        CLASSIFY + "parallel: hogwild\n",
    ),
    parallel(
        "mesh of an ensemble",
        "ensemble takes no mesh, because every device holds a whole model",
        "line 5: parallel:",
        "remove it, or take parallel.name=jit or explicit",
        CLASSIFY + "parallel: {name: ensemble, mesh: {fsdp: 2}}\n",
    ),
    Case(
        "mesh of pmap",
        "pmap takes no mesh",
        "command line: parallel:",
        "take parallel.name=jit or explicit",
        override("parallel.mesh.fsdp=2"),
    ),
    parallel(
        "fsdp and devices",
        "does not divide the 8 devices of the slice",
        "parallel.mesh.fsdp 3",
        "it can be 1, 2, 4, 8",
        CLASSIFY + "parallel: {name: jit, mesh: {fsdp: 3}}\n",
    ),
    parallel(
        "mesh and devices",
        "data 2 x fsdp 2 = 4 places, but the slice has 8 devices",
        "parallel.mesh",
        "data: -1",
        CLASSIFY + "parallel: {name: explicit, mesh: {data: 2, fsdp: 2}}\n",
    ),
    parallel(
        "mesh and batch",
        "batch_size 9 is not divisible by 8 devices",
        "parallel.mesh.fsdp 3 does not divide",
        "8 or 16",
        CLASSIFY.replace("8", "9") + "parallel: {name: jit, mesh: {fsdp: 3}}\n",
        "it can be 1, 2, 4, 8",
    ),
    parallel(
        "key of the mesh",
        "no such key",
        "line 5: parallel.mesh.fdsp:",
        "mean parallel.mesh.fsdp?",
        CLASSIFY + "parallel: {name: jit, mesh: {fdsp: 2}}\n",
    ),
    parallel(
        "ensemble of copies",
        "ensemble of linear models, which all start from zeros",
        "line 5: parallel:",
        "take another model",
        CLASSIFY + "parallel: ensemble\nmodel: linear\n",
    ),
    parallel(
        "layout of an optimizer",
        "does not know how to lay out what muon computes",
        "line 5: parallel:",
        "take parallel.name=jit, or fsdp: 1",
        CLASSIFY + "parallel: {name: explicit, mesh: {fsdp: 2}}\noptimizer: muon\n",
    ),
    parallel(
        "model and data of a task",
        "model: gpt2 does not fit task classification",
        "line 5: model: gpt2",
        "takes cnn, mlp, linear or package.module:attribute",
        CLASSIFY.replace("digits", "sine") + "model: gpt2\n",
        "line 2: data: sine does not fit",
        "takes digits, idx, make_classification",
    ),
    parallel(
        "what L-BFGS cannot use",
        "3 mistakes",
        "line 3: batch_size 8: lbfgs compares losses",
        "give batch_size: all, or another optimizer",
        LOGISTIC + "batch_size: 8\naccumulate: 2\nschedule: {name: constant}\n",
        "line 4: accumulate: lbfgs evaluates the whole batch at once; remove it",
        "line 5: schedule: lbfgs finds the length of its steps itself; remove the schedule",
    ),
    parallel(
        "L-BFGS with dropout",
        "with dropout each would be that of another network",
        "line 5: model.dropout 0.5: lbfgs compares losses",
        "remove it, or take another optimizer",
        CLASSIFY.replace("8", "all") + "model: {name: mlp, dropout: 0.5}\noptimizer: lbfgs\n",
    ),
    parallel(
        "line search",
        "or line_search: null and a fixed step_size",
        "line 3: optimizer:",
        "give line_search: zoom or backtracking",
        LOGISTIC + "optimizer: {line_search: null}\n",
    ),
    Case(
        "all of a text",
        "batch_size: all is for tasks with examples that stay the same",
        "command line: batch_size",
        "a text is cut anew",
        override("batch_size=all"),
    ),
]

POD = [
    Case("size of a slice", "unknown slice 'v3-33'", "v3-33", "v3-32, v3-64", ("-s", "v3-33", *override()[2:])),
    Case(
        "spelling of a slice", "unknown slice", "'v5lightpod-8'", "v5litepod-8", ("-s", "v5lightpod-8", *override()[2:])
    ),
    Case("no slice", "no slice", "launch.slice in train.yaml", "--slice v3-32", ("--simulate", "train.yaml")),
    Case("no hosts", "no hosts", "launch.pod in train.yaml", "--simulate", ("-s", "cpu-1x1", "train.yaml")),
    Case(
        "launch.python", "no program '/no/python'", "launch.python", "path of a P", override("launch.python=/no/python")
    ),
]


def pod_file(name: str, what: str, where: str, remedy: str, text: str, *args: str, **others: Any) -> Case:
    """A mistake in pod.yaml. `args` stand before train.yaml."""
    files = {"pod.yaml": text, **others.pop("files", {})}
    return Case(name, what, where, remedy, ("--pod", "pod.yaml", *args, "train.yaml"), files=files, **others)


POD_FILE = [
    Case("missing", "No such file", "pod file no.yaml", "pod_configs/", ("--pod", "no.yaml", "train.yaml")),
    pod_file("misspelled", "No such file", "pod file pot.yaml", "mean pod.yaml?", "", "--pod", "pot.yaml"),
    pod_file("empty", "is empty", "pod file pod.yaml", "`podrun init` writes one", "# nothing\n"),
    pod_file("malformed", "not valid YAML", "line 1, column 13", "needs quotes", "hosts: [tpu-[0-3], b]\n"),
    pod_file(
        "no slice", "no slice", "`slice` in pod.yaml, and launch.slice in train.yaml", "--slice v3-32", "hosts: a\n"
    ),
    pod_file("slice", "unknown slice 'v3-33'", "line 2: slice:", "nearest: v3-8, v3-32", "hosts: a\nslice: v3-33\n"),
    pod_file("unknown key", "no such key", "line 2: host:", "did you mean hosts?", "slice: cpu-1x1\nhost: a\n"),
    pod_file(
        "key of a section", "no such key", "line 3: user:", "mean ssh.user?", "slice: cpu-1x1\nhosts: a\nuser: me\n"
    ),
    pod_file(
        "key of a host",
        "no such key",
        "line 3: hosts.0.adress:",
        "mean hosts.0.address?",
        "slice: cpu-1x1\nhosts:\n- {name: a, adress: b}\n",
    ),
    pod_file(
        "transport",
        "(it is 'slurm')",
        "line 2: transport:",
        "'local' or 'ssh'",
        "slice: cpu-1x1\ntransport: slurm\n",
    ),
    pod_file("no hosts", "ssh needs `hosts`", "line 2: transport:", "--hosts", "slice: cpu-1x1\ntransport: ssh\n"),
    pod_file("nobody to reach", "no `hosts`", "line 2: ssh:", "`hosts: ", "slice: cpu-1x1\nssh: {user: me}\n"),
    pod_file("empty hosts", "is empty", "line 2: hosts:", "name at least one", "slice: cpu-1x1\nhosts: []\n"),
    pod_file("number", "(it is 7)", "line 3: hosts.0:", "in quotes", "slice: cpu-1x1\nhosts:\n- 7\n"),
    pod_file(
        "hosts of this machine",
        "there are `hosts`",
        "line 2: transport:",
        "remove one",
        "slice: cpu-1x1\ntransport: local\nhosts: a\n",
    ),
    pod_file("range", "runs backwards", "line 2: hosts.1:", "write [0-3]", "slice: cpu-4x1\nhosts: a, n[3-0]\n"),
    pod_file(
        "user of a host", "names a user", "line 2: hosts.0:", "`ssh: {user: me}`", "slice: cpu-1x1\nhosts: me@a\n"
    ),
    pod_file("port of a host", "has a port", "line 2: hosts.0:", "`ssh: {port: 22}`", "slice: cpu-1x1\nhosts: a:22\n"),
    pod_file(
        "unequal ranges",
        "name stands for 2 hosts, but address for 3",
        "line 3: hosts.0:",
        "equally many",
        "slice: cpu-2x1\nhosts:\n- {name: 'a[0-1]', address: 'b[0-2]'}\n",
    ),
    pod_file("same name", "the name a", "line 2: hosts:", "has its own", "slice: cpu-2x1\nhosts: [a, a]\n"),
    pod_file(
        "same address",
        "a and b have the address c",
        "line 2: hosts:",
        "has its own",
        "slice: cpu-2x1\nhosts: [{name: a, address: c}, {name: b, address: c}]\n",
    ),
    pod_file(
        "too few hosts",
        "3 hosts, but v3-32 has 4 hosts",
        "line 2: hosts:",
        "(v3-8 has 1, v3-32 has 4)",
        "slice: v3-32\nhosts: n[0-2]\n",
    ),
    pod_file(
        "too many hosts",
        "3 hosts, but gpu-2x8 has 2 hosts",
        "line 1: hosts:",
        "the slice gpu-3x8",
        "hosts: n[0-2]\n",
        "--slice",
        "gpu-2x8",
    ),
    pod_file(
        "key file",
        "No such file",
        "line 3: ssh.key:",
        "give the path",
        "slice: cpu-1x1\nhosts: a\nssh: {key: keys/id}\n",
    ),
    pod_file(
        "public key",
        "is the public half",
        "line 3: ssh.key:",
        "give id",
        "slice: cpu-1x1\nhosts: a\nssh: {key: id.pub}\n",
        files={"id.pub": ""},
    ),
    pod_file(
        "SSH port", "(it is 0)", "line 3: ssh.port:", "greater than", "slice: cpu-1x1\nhosts: a\nssh: {port: 0}\n"
    ),
    pod_file(
        "jump",
        "(it is 'a b')",
        "line 3: ssh.jump:",
        "USER@HOST:PORT",
        "slice: cpu-1x1\nhosts: a\nssh: {jump: a b}\n",
    ),
    pod_file(
        "requirements",
        "No such file",
        "line 3: requirements:",
        "give",
        "slice: cpu-1x1\nhosts: a\nrequirements: r.txt\n",
    ),
    pod_file(
        "workdir", "(it is 'runs')", "line 3: workdir:", "with / or ~/", "slice: cpu-1x1\nhosts: a\nworkdir: runs\n"
    ),
    pod_file(
        "ports", "runs backwards", "line 3: ports:", "write 2000-3000", "slice: cpu-1x1\nhosts: a\nports: 3000-2000\n"
    ),
    pod_file("port", "(it is 4100)", "line 3: ports:", "41000-41999", "slice: cpu-1x1\nhosts: a\nports: 4100\n"),
    pod_file(
        "secret that is set nowhere",
        "PODRUN_TEST_UNSET is not set in the environment",
        "line 3: secrets.0:",
        "export it",
        "slice: cpu-1x1\nhosts: a\nsecrets: [PODRUN_TEST_UNSET]\n",
    ),
    pod_file(
        "secret that is no secret",
        "is in `env` as well",
        "line 4: secrets.0:",
        "keep one",
        "slice: cpu-1x1\nhosts: a\nenv: {A: b}\nsecrets: [A]\n",
    ),
    pod_file(
        "open secrets_file",
        "others may read",
        "line 4: secrets_file:",
        "chmod 600",
        "slice: cpu-1x1\nhosts: a\nsecrets: [A]\nsecrets_file: values\n",
        files={"values": "A=hidden\n"},
    ),
    pod_file(
        "no secrets_file",
        "No such file",
        "line 4: secrets_file:",
        "NAME=VALUE",
        "slice: cpu-1x1\nhosts: a\nsecrets: [A]\nsecrets_file: values\n",
    ),
    pod_file(
        "many mistakes",
        "4 mistakes",
        "line 1: slice:",
        "line 2: hosts.1:",
        "slice: v3-33\nhosts: [a, n[1], b, a]\nport: 1\nworkdir: x\n".replace("n[1]", "'n[1'"),
        also=("line 3: port:", "line 4: workdir:"),
    ),
]

HOSTS = [
    Case("user", "'me@a' names a user", "--hosts:", "`ssh: {user: me}`", ("-s", "cpu-1x1", "--hosts", "me@a", TRAIN)),
    Case("no range", "is no range", "--hosts: 'n[x]'", "[0-3]", ("-s", "cpu-1x1", "--hosts", "n[x]", TRAIN)),
    Case("no host", "is empty", "--hosts:", "--hosts tpu-[0-3]", ("-s", "cpu-1x1", "--hosts", ",", TRAIN)),
    Case("same host", "the name a", "--hosts:", "has its own", ("-s", "cpu-2x1", "--hosts", "a,a", TRAIN)),
    Case("too few", "1 host, but v3-32 has 4", "--hosts:", "fits: v3-8", ("-s", "v3-32", "--hosts", "a", TRAIN)),
    Case("both", "--hosts and --hostfile", "", "one of them", ("--hosts", "a", "--hostfile", "train.yaml", TRAIN)),
    Case("simulated", "--simulate runs on this machine", "--hosts", "one of them", (*SIMULATE, "--hosts", "a", TRAIN)),
    Case("no slice", "no slice", "launch.slice in train.yaml", "--slice v3-32", ("--hosts", "a", TRAIN)),
    Case("no hostfile", "No such file", "hostfile no", "`HOST slots=N`", ("--hostfile", "no", TRAIN)),
    hostfile("empty hostfile", "has no hosts", "hostfile hf", "`HOST slots=N`", "# none\n"),
    hostfile("colon", "'a:8'", "line 1:", "`a slots=8`", "a:8\n"),
    hostfile("other words", "only `slots=N`", "line 2: 'b cpus=8'", "slots=N", "a slots=8\nb cpus=8\n"),
    hostfile("unequal slots", "slots=4, but slots=8 in line 1", "line 2:", "the same", "a slots=8\nb slots=4\n"),
    hostfile("no slots", "no slots, but slots=8 in line 1", "line 3:", "the same", "a slots=8\n\nb\n"),
    hostfile("twice", "a stands in line 1 already", "line 2:", "keep one", "a slots=8\na slots=8\n"),
    hostfile("other slots", "slots=4, but gpu-1x8 has 8", "--hostfile:", "change one", "a slots=4\n", "-s", "gpu-1x8"),
    hostfile("hosts of hf", "1 host, but gpu-2x8 has 2", "--hostfile:", "gpu-1x8", "a slots=8\n", "-s", "gpu-2x8"),
]

INIT = [
    Case("nobody to ask", "nobody to ask", "--slice and --hosts", "left out: --user", ("init",)),
    Case("exists", "exists already", "text.txt", "--force", ("init", "text.txt", "--yes")),
    Case("no folder", "no folder no", "no/pod.yaml", "make it", ("init", "no/pod.yaml", "--yes")),
    Case("folder", "is a folder", ".", "pod.yaml", ("init", ".", "--yes")),
    Case(
        "answers",
        "--slice: unknown slice 'v3-33'",
        "--hosts: names a user",
        "with / or ~/",
        ("init", "--slice", "v3-33", "--hosts", "me@a", "--key", "no", "--workdir", "x"),
        also=("--key: cannot read",),
    ),
    Case("misfit", "1 host, but v3-32 has 4", "--hosts:", "v3-8", ("init", "-s", "v3-32", "--hosts", "a")),
]

FILES = [
    Case(
        "missing data",
        "no file, folder or match for 'a.txt'",
        "data.path",
        "a path that exists",
        override("data.path=a.txt"),
    ),
    Case(
        "empty text",
        "a.txt is empty",
        "data.path",
        "give a file that has text",
        override("data.path=a.txt"),
        files={"a.txt": ""},
    ),
    Case("glob", "'a/**.txt'", "data.path: ", "give a ", override("data.path=a/**.txt")),
    Case("long name", "File name too long", "data.path", "give a file", override(f"data.path={'a' * 300}")),
    Case("no such home", "home directory", "data.path", "give a file", override("data.path=~no-such-user/a.txt")),
    Case("missing tokenizer.json", "cannot read tokenizer.json", "data.tokenizer.file", "that exists", override(BPE)),
    Case("tokens", "cannot read a.bin", "data.path", "that exists", override("data={name: tokens, path: a.bin}")),
    Case("workdir is a file", "is a file, not a folder", "workdir", "--workdir DIR", (*override(), "-w", "text.txt")),
    Case(
        "workdir below a file", "is a file, not", "text.txt/run", "--workdir DIR", (*override(), "-w", "text.txt/run")
    ),
    Case("workdir not writable", "/proc/podrun", "workdir", "--workdir DIR", (*override(), "-w", "/proc/podrun")),
    Case("PODRUN_HOME", "cannot make the run directory", "home/runs/", "set PODRUN_HOME", files={"home": ""}),
]

OPTIONS = [
    Case("unknown option", "no such option", "--simulat", "--simulate", ("--simulat", "train.yaml")),
    Case("no value", "requires an argument", "'--slice'", "`podrun run --help`", ("train.yaml", "--slice")),
    Case("no file", "missing argument", "train.yaml", "`podrun run --help`", SIMULATE),
    Case("option of a command", "no such option", "--jso", "`podrun slices --help`", ("slices", "--jso")),
    Case("slices of no generation", "unknown slice", "'v9'", "v5litepod (v5e), v5p,", ("slices", "v9")),
    Case("slices of GPUs", "unknown slice", "'gpu'", "\nTPU generations: v2, v3", ("slices", "gpu")),
    Case("option for a key", "no such option", "'--steps'", "write steps=100", (*override(), "--steps", "100")),
    Case("dashes", "no such option", "'--batch-size'", "write batch_size=8", (*override(), "--batch-size=8")),
    Case(
        "option of a section",
        "no such",
        "--learning-rate",
        "optimizer.learning_rate=1",
        ("a.yaml", "--learning-rate", "1"),
    ),
    Case("shell", "'tcsh' is not one of", "tcsh", "`podrun completion --help`", ("completion", "tcsh")),
]

# These are found by a worker: the launcher does not import the user's code, and does not tokenize.
BY_A_WORKER = [
    Case(
        "short text", "too short", "data.path a.txt", "more text", override("data.path=a.txt"), files={"a.txt": "short"}
    ),
    Case("no plugin module", "no module 'no_such'", "data.name", "the directory", override("data=no_such:source")),
    Case(
        "no plugin attribute",
        "has no 'source'",
        "data.name: module 'mine'",
        "it has: sauce",
        override("data=mine:source"),
        files={"mine.py": "sauce = None\n"},
    ),
]


EARLY = [*TRAIN_YAML, *OVERRIDES, *MODEL_AND_SIZES, *PARALLEL, *POD, *POD_FILE, *HOSTS, *INIT, *FILES, *OPTIONS]


def explain(sandbox: Sandbox, case: Case) -> subprocess.CompletedProcess[str]:
    """Runs podrun on the case and checks its message."""
    train = sandbox.path / "train.yaml"
    if isinstance(case.yaml, bytes):
        train.write_bytes(case.yaml)
    elif case.yaml is not None:
        train.write_text(case.yaml)
    for name, text in case.files.items():
        (sandbox.path / name).write_text(text)
    done = sandbox.podrun(*case.args)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "Traceback" not in output
    assert len(output.splitlines()) <= LINES, output
    for part in (case.what, case.where, case.remedy, *case.also):
        assert part in done.stderr, f"{part!r} is not in:\n{output}"
    return done


@pytest.mark.parametrize("case", EARLY, ids=lambda case: case.name)
def test_bad_input_is_explained_before_anything_starts(sandbox: Sandbox, case: Case) -> None:
    """Exit code 2 and a short message on stderr; nothing on stdout, and no run directory."""
    done = explain(sandbox, case)
    assert done.stdout == ""
    assert not (sandbox.path / "home" / "runs").exists()


@pytest.mark.parametrize("case", BY_A_WORKER, ids=lambda case: case.name)
def test_bad_input_that_only_a_worker_can_see_is_explained(sandbox: Sandbox, case: Case) -> None:
    """The worker's message arrives whole, and podrun's last line repeats it with the process and the exit code."""
    done = explain(sandbox, case)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"podrun: failed: host-0 (process 0): {case.where}")
    assert last.endswith("[exit code 2]")


def test_a_mistake_does_not_hide_another(sandbox: Sandbox) -> None:
    """Slice, files, interpreter and workdir are checked together, and each problem has a line of its own."""
    args = (
        "-s",
        "cpu-1x3",
        "--simulate",
        "train.yaml",
        "-w",
        "text.txt",
        "data.path=a.txt",
        "launch.python=/no/python",
    )
    done = sandbox.podrun(*args)
    assert done.returncode == 2
    starts = [line.removeprefix("podrun: ").partition(" ")[0] for line in done.stderr.splitlines()]
    assert starts == ["workdir", "batch_size", "data.path:", "launch.python:"]

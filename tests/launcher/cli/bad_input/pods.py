"""Mistakes in what says the hosts: slices, pod files, hostfiles, `podrun init`."""

from __future__ import annotations

from typing import Any

from .case import SIMULATE, TRAIN, Case, override


def hostfile(name: str, what: str, where: str, remedy: str, text: str, *args: str) -> Case:
    """A mistake in the file hf."""
    return Case(name, what, where, remedy, (*args, "--hostfile", "hf", TRAIN), files={"hf": text})


POD = [
    Case("size of a slice", "unknown slice 'v3-33'", "v3-33", "v3-32, v3-64", ("-s", "v3-33", *override()[2:])),
    Case(
        "spelling of a slice", "unknown slice", "'v5lightpod-8'", "v5litepod-8", ("-s", "v5lightpod-8", *override()[2:])
    ),
    Case("no slice", "no slice", "launch.slice in train.yaml", "--slice v3-32", ("--simulate", "train.yaml")),
    Case("no hosts", "no hosts", "launch.pod in train.yaml", "--simulate", ("-s", "cpu-1x1", "train.yaml")),
    Case(
        "this machine and a TPU VM",
        "both say where",
        "--local and --tpu",
        "one of them",
        ("--local", "--tpu", "t", TRAIN),
    ),
    Case(
        "this machine and a job of SLURM",
        "both say where",
        "--local and --slurm",
        "one of them",
        ("--local", "--slurm=time=1:00", TRAIN),
    ),
    Case(
        "launch.python", "no program '/no/python'", "launch.python", "path of a P", override("launch.python=/no/python")
    ),
]


def pod_file(name: str, what: str, where: str, remedy: str, text: str, *args: str, **others: Any) -> Case:
    """A mistake in pod.yaml. `args` stand before train.yaml."""
    files = {"pod.yaml": text, **others.pop("files", {})}
    return Case(name, what, where, remedy, ("--pod", "pod.yaml", *args, "train.yaml"), files=files, **others)


def python_of_pod(name: str, what: str, where: str, remedy: str, version: str) -> Case:
    """A mistake in the version of Python that podrun installs on the hosts of pod.yaml."""
    text = f'slice: cpu-1x1\nhosts: a\npython: "{version}"\nrequirements: r.txt\n'
    return pod_file(name, what, where, remedy, text, files={"r.txt": "jax\n"})


def python_of_job(name: str, what: str, version: str) -> Case:
    """A mistake in launch.python, for a host that is reached by SSH."""
    return Case(
        name,
        what,
        f"launch.python: {version}",
        "write 3.12 or 3.12.4",
        ("--pod", "pod.yaml", "train.yaml", f"launch.python={version}"),
        files={"pod.yaml": "slice: cpu-1x1\nhosts: a\n"},
    )


TWO = "slice: cpu-2x1\nhosts: [a, b]\n"
IMAGE = TWO + "container: {engine: apptainer, image: a%s}\n"
POD_FILE = [
    pod_file("spares without hosts", "there are none", "spares", "needs no spares", "slice: cpu-2x1\nspares: [a]\n"),
    pod_file(
        "a spare that is a host",
        "two hosts have the name a",
        "spares",
        "its own",
        TWO + "spares: a\n",
    ),
    pod_file("exclude without hosts", "is for hosts", "exclude", "remove it", "slice: cpu-2x1\nexclude: bad\n"),
    pod_file("exclude of a name", "'a'", "exclude", "bad", TWO + "exclude: a\n"),
    pod_file(
        "min_hosts that are more",
        "5 is more than the 2",
        "min_hosts",
        "at most",
        TWO + "min_hosts: 5\n",
    ),
    pod_file(
        "min_hosts of a TPU slice",
        "wired together",
        "min_hosts",
        "`spares`",
        "slice: v4-16\nhosts: [a, b]\nmin_hosts: 1\n",
    ),
    pod_file("no image", "not given", "container.image", "required", TWO + "container: {engine: apptainer}\n"),
    pod_file("an engine", "enroot", "container.engine", "pyxis", TWO + "container: {engine: enroot, image: a}\n"),
    pod_file(
        "two mounts at one path",
        "/data/a:/data and /data:/data:ro are both mounted at /data",
        "container.mounts",
        "remove one",
        TWO + "container: {engine: docker, image: a, mounts: ['/data/a:/data', '/data:/data:ro']}\n",
    ),
    pod_file(
        "pyxis by SSH",
        "plug-in of SLURM",
        "container.engine",
        "take apptainer",
        (IMAGE % "").replace("apptainer", "pyxis"),
    ),
    pod_file(
        "docker in a SLURM job",
        "reached by SSH",
        "container.engine",
        "take pyxis or apptainer",
        "slice: cpu-2x1\ncontainer: {engine: docker, image: a}\n",
        "--slurm=time=1:00:00",
    ),
    pod_file(
        "a mount",
        "path on the hosts",
        "mounts",
        "/ in front",
        IMAGE % ", mounts: [data]",
    ),
    pod_file(
        "several mounts",
        "without commas",
        "mounts",
        "PATH",
        IMAGE % ", mounts: '/a,/b'",
    ),
    pod_file(
        "options",
        "begins with -",
        "options",
        "--overlay",
        IMAGE % ", options: nv",
    ),
    pod_file(
        "requirements of an image",
        "packages of its image",
        "requirements",
        "install them there",
        IMAGE % "" + "requirements: r.txt\n",
        files={"r.txt": "jax\n"},
    ),
    pod_file(
        "packages of nothing",
        "there is none",
        "line 3: offline:",
        "name a requirements.txt",
        "slice: cpu-1x1\nhosts: a\noffline: true\n",
    ),
    pod_file(
        "a version of Python without packages",
        "there is none",
        "line 3: python: 3.12 is a version",
        "name a requirements.txt, or the path of an interpreter",
        'slice: cpu-1x1\nhosts: a\npython: "3.12"\n',
    ),
    pod_file(
        "a version of Python that is a number",
        "must be text",
        "line 3: python:",
        "put it in quotes",
        "slice: cpu-1x1\nhosts: a\npython: 3.12\n",
    ),
    pod_file(
        "a Python that is no version",
        "no version of Python",
        "line 3: python:",
        "write 3.12 or 3.12.4",
        "slice: cpu-1x1\nhosts: a\npython: 3.12t\n",
    ),
    python_of_pod(
        "a version of Python that does not exist", "3.8 to 3.15", "line 3: python:", "write 3.12 or 3.12.4", "3.99"
    ),
    python_of_job("a Python of a job that does not exist", "3.8 to 3.15", "3.12.99"),
    pod_file(
        "a bucket for all runs",
        "must be a folder on the hosts",
        "line 3: workdir:",
        "--workdir gs://BUCKET/PATH",
        "slice: cpu-1x1\nhosts: a\nworkdir: gs://bucket/runs\n",
    ),
    python_of_pod(
        "a version of Python that the runtime does not work with",
        "needs Python 3.11 or newer",
        "python in the pod file: 3.9",
        "write for example 3.12",
        "3.9",
    ),
    python_of_job("a Python of a job that is no version", "no version of Python", "3.13rc1"),
    pod_file(
        "a version of Python for this machine",
        "to other machines only",
        "line 3: python: 3.12",
        "give a path here",
        'slice: cpu-1x1\nhosts: [local]\npython: "3.12"\n',
    ),
    pod_file(
        "a version of Python for an image",
        "brings no Python into a container",
        "python: 3.12",
        "install it in the image",
        IMAGE % "" + 'python: "3.12"\n',
    ),
    pod_file(
        "an image here",
        "simulated pod",
        "container",
        "SSH",
        (IMAGE % "").replace("hosts: [a, b]\n", ""),
    ),
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
        "name has 2 hosts, but address has 3",
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
    Case("TPU without its zone", "--tpu needs", "--tpu", "--zone ZONE as well", ("--tpu", "t", TRAIN)),
    Case("zone without a TPU", "--zone is for", "--zone", "--tpu NAME; add that", ("-s", "v3-8", "--zone", "z", TRAIN)),
    Case("project without a TPU", "--project is for", "", "--tpu NAME", ("--hosts", "a", "--project", "p", TRAIN)),
    Case("TPU and hosts", "--hosts and --tpu both", "", "one of them", ("--hosts", "a", "--tpu", "t", TRAIN)),
    Case(
        "TPU that is an option", "'--help' cannot be the name", "--tpu:", "my-tpu", ("--tpu=--help", "--zone=z", TRAIN)
    ),
    Case("no hostfile", "No such file", "hostfile no", "`HOST slots=N`", ("--hostfile", "no", TRAIN)),
    hostfile("empty hostfile", "has no hosts", "hostfile hf", "`HOST slots=N`", "# none\n"),
    hostfile("colon", "'a:8'", "line 1:", "`a slots=8`", "a:8\n"),
    hostfile("other words", "only `slots=N`", "line 2: 'b cpus=8'", "slots=N", "a slots=8\nb cpus=8\n"),
    hostfile("unequal slots", "slots=4, but slots=8 in line 1", "line 2:", "the same", "a slots=8\nb slots=4\n"),
    hostfile("no slots", "no slots, but slots=8 in line 1", "line 3:", "the same", "a slots=8\n\nb\n"),
    hostfile("twice", "a is in line 1 already", "line 2:", "keep one", "a slots=8\na slots=8\n"),
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
    Case(
        "offline here",
        "uses what is installed here",
        "--offline",
        "leave it out",
        ("init", "--slice", "cpu-1x1", "--hosts", "local", "--offline"),
    ),
    Case("misfit", "1 host, but v3-32 has 4", "--hosts:", "v3-8", ("init", "-s", "v3-32", "--hosts", "a")),
]

"""Sources of the hosts of a pod: ranges, hostfiles, pod files, options, and what goes before what."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from podrun.launcher.inventory import pod_file
from podrun.launcher.inventory.base import INVENTORIES, REFINEMENTS, Inventory, Listing, usage_of
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.fits import misfit
from podrun.launcher.inventory.hostfile import read_hostfile
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.inventory.pod_schema import PodFile
from podrun.launcher.pod.lazy import load
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.ranges import expand, split_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

POD_CONFIGS = Path(__file__).parents[3] / "pod_configs"


def named(*names: str) -> tuple[Host, ...]:
    return tuple(Host(name, name) for name in names)


# --- ranges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("tpu-0", ["tpu-0"]),
        ("tpu-[0-3]", ["tpu-0", "tpu-1", "tpu-2", "tpu-3"]),
        ("n[008-010]", ["n008", "n009", "n010"]),
        ("n[8-10]", ["n8", "n9", "n10"]),
        ("10.0.0.[1-3]", ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ("a[1,3-4]b[0-1]", ["a1b0", "a1b1", "a3b0", "a3b1", "a4b0", "a4b1"]),
        ("n[1, 2].example.org", ["n1.example.org", "n2.example.org"]),
        ("[1-2]n", ["1n", "2n"]),
        ("fe80::1", ["fe80::1"]),
        ("2001:db8::[1-2]", ["2001:db8::1", "2001:db8::2"]),
    ],
)
def test_ranges_stand_for_hosts(text: str, hosts: list[str]) -> None:
    """Zeros in front are kept, and of several brackets the last runs fastest."""
    assert expand(text) == hosts


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("n[3-1]", r"runs backwards; write \[1-3\]"),
        ("n[]", "is no range"),
        ("n[a-c]", "is no range"),
        ("n[1-]", "is no range"),
        ("n[1-2", "without its partner"),
        ("n1-2]", "without its partner"),
        ("n[[1-2]]", "without its partner"),
        ("n{0..3}", r"write a range as n\[0-3\]"),
        ("me@n1", "names a user; write n1, and `ssh: {user: me}`"),
        ("n1:22", "has a port; write n1, and `ssh: {port: 22}`"),
        ("[::1]", "without brackets"),
        ("", "is empty"),
        ("-oProxyCommand=x", "is not the name or address of a host"),
        ("a/b", "is not the name or address of a host"),
        ("..", "is not the name or address of a host"),
        ("n[0-99999999]", "stands for more than 10000 hosts"),
        ("n[0-999]x[0-999]", "stands for more than 10000 hosts"),
    ],
)
def test_what_is_no_range_is_explained(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        expand(text)


def test_a_list_is_split_outside_of_brackets() -> None:
    assert split_hosts("a,n[1,3-4],  b c\n") == ["a", "n[1,3-4]", "b", "c"]
    assert split_hosts(" , ") == []


# --- hostfiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "listing"),
    [
        ("a slots=8\nb slots=8\n", (named("a", "b"), 8)),
        ("# DeepSpeed\n\n  a   slots=4  # one\nb slots=4", (named("a", "b"), 4)),
        ("a\nb\n", (named("a", "b"), None)),
        ("n[1-2] slots=1\n", (named("n1", "n2"), 1)),
    ],
)
def test_hostfiles(tmp_path: Path, text: str, listing: tuple[tuple[Host, ...], int | None]) -> None:
    path = tmp_path / "hostfile"
    path.write_text(text)
    assert read_hostfile(path) == Listing(*listing)


# --- which slices fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice", "hosts", "what"),
    [
        ("v3-32", 4, None),
        ("v4-32", 2, "2 hosts, but v4-32 has 4 hosts; give 4 hosts, or a slice that fits: v4-16"),
        ("v3-32", 1, "1 host, but v3-32 has 4 hosts; give 4 hosts, or a slice that fits: v3-8"),
        (
            "v3-32",
            3,
            "3 hosts, but v3-32 has 4 hosts; give 4 hosts; no v3 slice has 3 hosts (v3-8 has 1, v3-32 has 4)",
        ),
        ("v5e-8", 1, None),
        ("v5e-8", 2, None),
        ("2xv6e-8", 4, None),
        (
            "v6e-8",
            3,
            "3 hosts, but v6e-8 has 1 host of 8 chips, or 2 hosts of 4; give 1 host; no v6e slice has 3 hosts "
            "(v6e-1 has 1, v6e-16 has 4)",
        ),
        (
            "2xv6e-8",
            3,
            "3 hosts, but 2xv6e-8 has 2 hosts of 8 chips, or 4 hosts of 4; give 2 hosts, those of each of its 2 "
            "slices one after the other, or another number of slices",
        ),
        ("v6e-16", 2, "2 hosts, but v6e-16 has 4 hosts; give 4 hosts, or a slice that fits: v6e-8"),
        ("gpu-2x8", 3, "3 hosts, but gpu-2x8 has 2 hosts; give 2 hosts, or the slice gpu-3x8"),
    ],
)
def test_a_misfit_names_what_would_fit(slice: str, hosts: int, what: str | None) -> None:
    assert misfit(parse_slice(slice), hosts) == what


@pytest.mark.parametrize("slice", ["v5e-8", "v5litepod-8", "v6e-8"])
@pytest.mark.parametrize("where", ["file", "option"])
def test_a_slice_of_one_host_or_two(tmp_path: Path, slice: str, where: str) -> None:
    """The number of hosts says how many chips each has; the slice keeps its name."""
    for hosts, chips in (("[a]", 8), ("[a, b]", 4)):
        file = tmp_path / "pod.yaml"
        file.write_text(f"slice: {slice}\n" + (f"hosts: {hosts}\n" if where == "file" else ""))
        listing = {"hosts": hosts.strip("[]")} if where == "option" else {}
        pod = find_pod(PodRequest(pod=file, inventories=listing))
        assert (pod.slice.hosts, pod.slice.devices_per_host, pod.slice.devices) == (len(pod.hosts), chips, 8)
        assert pod.slice.name == parse_slice(slice).name and pod.slice.topology == "2x4"
    file.write_text(f"slice: {slice}\nhosts: [a, b, c]\n")
    with pytest.raises(UserError, match="has 1 host of 8 chips, or 2 hosts of 4; give"):
        find_pod(PodRequest(pod=file))


# --- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INVENTORIES)
def test_an_inventory_is_all_that_its_line_says(name: str) -> None:
    """Its module has what the line promises, its key is in the pod file, and messages name its option."""
    inventory: Inventory = INVENTORIES[name]
    module = load(inventory.module)
    assert callable(module.from_option if inventory.lists_hosts else module.from_slice)
    assert not inventory.is_key or (callable(module.from_key) and name in PodFile.model_fields)
    with pytest.raises(UserError, match=f"no hosts: looked for .*{usage_of(name)}"):
        find_pod(PodRequest("cpu-1x1"))


@pytest.mark.parametrize("name", REFINEMENTS)
def test_a_refinement_is_an_argument_of_its_inventory(name: str) -> None:
    refinement = REFINEMENTS[name]
    module = load(INVENTORIES[refinement.inventory].module)
    argument = inspect.signature(module.from_option).parameters[name]
    assert (argument.default is argument.empty) == refinement.is_needed
    with pytest.raises(
        UserError, match=f"{usage_of(name).split()[0]} is for {usage_of(refinement.inventory)}; add that, or"
    ):
        find_pod(PodRequest("cpu-1x1", refinements={name: "x"}))


# --- pod files --------------------------------------------------------------------------------------------------------


def pod_of(folder: Path, text: str, launch: Launch | None = None, **typed: object) -> Pod:
    path = folder / "pod.yaml"
    path.write_text(text)
    slice = typed.pop("slice", None)
    return find_pod(PodRequest(slice, path, typed), launch)  # type: ignore[arg-type]


def test_a_pod_file_in_full(tmp_path: Path) -> None:
    """Every key arrives; paths are relative to the file, or to the home directory."""
    for name in ("id", "known", "config", "needs.txt", "values"):
        (tmp_path / name).write_text("TOKEN=x\n" if name == "values" else "")
    (tmp_path / "values").chmod(0o600)
    pod = pod_of(
        tmp_path,
        """\
slice: gpu-3x2
transport: ssh
hosts:
  - one
  - {name: "n[2-3]", address: "10.0.0.[2-3]", internal: "192.168.0.[2-3]"}
ssh: {user: me, port: 2222, key: id, jump: "you@gate:22", known_hosts: known, host_keys: accept-new, config: config}
home: /scratch/podrun
python: ~/venv/bin/python
workdir: /mnt/runs
env: {A: b}
secrets: [TOKEN]
secrets_file: values
setup: [one, two]
requirements: needs.txt
offline: true
ports: 41000-41999
""",
    )
    assert pod == Pod(
        slice=parse_slice("gpu-3x2"),
        hosts=(
            Host("one", "one"),
            Host("n2", "10.0.0.2", "192.168.0.2"),
            Host("n3", "10.0.0.3", "192.168.0.3"),
        ),
        transport="ssh",
        platform="cuda",
        ssh=Ssh("me", 2222, tmp_path / "id", "you@gate:22", tmp_path / "known", "accept-new", tmp_path / "config"),
        home="/scratch/podrun",
        python="~/venv/bin/python",
        workdir="/mnt/runs",
        env={"A": "b"},
        secrets=("TOKEN",),
        secrets_file=tmp_path / "values",
        setup=("one", "two"),
        requirements=tmp_path / "needs.txt",
        offline=True,
        ports=(41000, 41999),
    )


@pytest.mark.parametrize(
    ("text", "names", "transport", "platform"),
    [
        ("slice: v3-32\nhosts: tpu-[0-3]\n", ["tpu-0", "tpu-1", "tpu-2", "tpu-3"], "ssh", "tpu"),
        ("slice: cpu-2x2\nhosts: a, b\n", ["a", "b"], "ssh", "cpu"),
        ("slice: cpu-2x2\nhosts:\n- a\n- b\n", ["a", "b"], "ssh", "cpu"),
        ("slice: cpu-2x2\n", ["host-0", "host-1"], "local", "cpu"),
        ("slice: v4-16\ntransport: local\n", ["host-0", "host-1"], "local", "cpu"),
        ("slice: gpu-1x8\nhosts: a\nports: [2000, 2000]\nsetup: make\n", ["a"], "ssh", "cuda"),
    ],
)
def test_short_pod_files(tmp_path: Path, text: str, names: list[str], transport: str, platform: str) -> None:
    pod = pod_of(tmp_path, text)
    assert [host.name for host in pod.hosts] == names
    assert (pod.transport, pod.platform) == (transport, platform)


def test_only_one_key_says_where_the_hosts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of several is ignored without a word."""
    monkeypatch.setattr(pod_file, "INVENTORIES", {**INVENTORIES, "python": INVENTORIES["hosts"]})
    what = r"line 3: python: .*`hosts` names the hosts as well; remove one of the two"
    with pytest.raises(UserError, match=what):
        pod_of(tmp_path, "slice: cpu-1x1\nhosts: a\npython: python3\n")


@pytest.mark.parametrize("file", sorted(POD_CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_the_examples_are_good(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They name files of the reader's only in comments; the one secret is set here. SLURM has the nodes of one."""
    monkeypatch.setenv("WANDB_API_KEY", "x")
    pod = find_pod(PodRequest("gpu-4x8" if file.stem == "slurm" else None, file))
    assert len(pod.hosts) == pod.slice.hosts
    simulated = file.stem.startswith(("simulated", "slurm"))
    assert pod.transport == ("this_machine" if file.stem == "this_machine" else "local" if simulated else "ssh")


# --- what goes before what --------------------------------------------------------------------------------------------


def test_what_is_typed_goes_before_the_pod_file(tmp_path: Path) -> None:
    """--hosts replaces the hosts of the file, and keeps everything else of it."""
    text = "slice: cpu-2x2\nhosts: [a, b]\nssh: {user: me}\nworkdir: /runs\n"
    pod = pod_of(tmp_path, text, slice="cpu-1x4", hosts="c")
    assert (pod.slice.name, pod.hosts, pod.ssh.user, pod.workdir) == ("cpu-1x4", named("c"), "me", "/runs")
    simulated = pod_of(tmp_path, text, simulate=True)
    assert (simulated.slice.name, simulated.transport) == ("cpu-2x2", "local")


def test_the_pod_file_goes_before_train_yaml(tmp_path: Path) -> None:
    launch = Launch(slice="cpu-1x1", pod=tmp_path / "pod.yaml")
    assert pod_of(tmp_path, "slice: cpu-2x2\n", launch).slice.name == "cpu-2x2"
    assert pod_of(tmp_path, "hosts: a\n", launch).slice.name == "cpu-1x1"
    assert find_pod(PodRequest(), launch).hosts == named("a")


def test_a_hostfile_with_slots_needs_no_slice(tmp_path: Path) -> None:
    path = tmp_path / "hostfile"
    path.write_text("a slots=4\nb slots=4\n")
    pod = find_pod(PodRequest(inventories={"hostfile": path}))
    assert (pod.slice.name, pod.hosts, pod.transport, pod.platform) == ("gpu-2x4", named("a", "b"), "ssh", "cuda")
    assert find_pod(PodRequest("cpu-2x4", inventories={"hostfile": path})).platform == "cpu"


def test_all_mistakes_are_in_one_error(tmp_path: Path) -> None:
    """All are reported: of keys, of values, of keys that do not fit together, and of the command line."""
    text = "slice: v3-33\nhosts: [a, a]\nport: 22\nsecrets: [PODRUN_TEST_UNSET]\nrequirements: no.txt\n"
    with pytest.raises(UserError) as raised:
        pod_of(tmp_path, text, hosts="b@c", hostfile=tmp_path / "no")
    said = str(raised.value)
    for part in ("--hosts and --hostfile", "v3-33", "mean ssh.port?", "PODRUN_TEST_UNSET is not set", "no.txt"):
        assert part in said

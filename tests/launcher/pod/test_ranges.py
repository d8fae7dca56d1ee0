"""The limits of ranges of hosts, the mistakes in them, and the traits of transports."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.ranges import LIMIT, count, expand, is_host, split_hosts
from podrun.launcher.pod.slices import find_slices, nearest_slices, parse_slice, slice_table
from podrun.launcher.pod.traits import location
from podrun.runtime.contract import UserError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", 1),
        ("n[0-3]", 4),
        ("n[0-3,7]", 5),
        ("n[5]", 1),
        ("n[0-1]-[0-2]", 6),
        ("n[3-1]", 1),
        ("n[x]", 1),
        ("n[3-1,5-6]", 2),
        ("n[x]m[0-1]", 2),
    ],
)
def test_hosts_are_counted_without_their_names(text: str, hosts: int) -> None:
    """Malformed ranges count as one."""
    assert count(text) == hosts


def test_the_limits_of_a_list() -> None:
    """Ten thousand hosts are allowed and one more is not; so are 253 characters of a name."""
    assert LIMIT == 10_000
    assert len(expand("n[1-10000]")) == 10_000 == len(expand("n[1-100]-[1-100]"))
    for text in ("n[0-10000]", "n[1-100]-[0-100]"):
        with pytest.raises(ValueError, match="more than 10000 hosts"):
            expand(text)
    assert count("n[1-999999999]" * 500) > LIMIT
    assert expand("a" * 251 + "[8-9]") == ["a" * 251 + "8", "a" * 251 + "9"] and expand("a" * 253)
    for text in ("a" * 252 + "[9-10]", "a" * 254, "a" * 126 + "[1,10]" + "b" * 126):
        with pytest.raises(ValueError, match="longer than 253 characters"):
            expand(text)


def test_ranges_keep_their_zeros_and_their_order() -> None:
    """The last bracket varies fastest."""
    assert expand("n[08-10,3]") == ["n08", "n09", "n10", "n3"]
    assert expand("n[0-1]m[0-1].lab") == ["n0m0.lab", "n0m1.lab", "n1m0.lab", "n1m1.lab"]
    assert expand("n[4-4]") == ["n4"] and expand("n[ 1 , 2 ]") == ["n1", "n2"]
    assert split_hosts("a, n[1, 3] b,,c") == ["a", "n[1, 3]", "b", "c"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("a\nb", "cannot be shown"),
        ("ann@n0", r"names a user; write n0, and `ssh: \{user: ann\}`"),
        ("n{0..3}", "has braces"),
        ("n0}", "has braces"),
        ("[::1]", "an IPv6 address without brackets"),
        ("n[0-3", "bracket without its partner"),
        ("n0]", "bracket without its partner"),
        ("n]0[", "bracket without its partner"),
        ("n[a-b]", r"has \[a-b\], which is no range"),
        ("n[3-1]", r"runs backwards; write \[1-3\]"),
        ("n0:22", r"has a port; write n0, and `ssh: \{port: 22\}`"),
        ("n0:ssh", "is not the name or address of a host"),
        ("-n:22", "is not the name or address of a host"),
        ("-n0", "is not the name or address of a host"),
        ("n0-", "is not the name or address of a host"),
        ("fe80:::1", "is not the name or address of a host"),
    ],
)
def test_mistakes_are_explained(text: str, what: str) -> None:
    """Each with the form that is right here."""
    with pytest.raises(ValueError, match=what):
        expand(text)


@pytest.mark.parametrize("host", ["n0", "n0.lab.", "_x", "10.0.0.1", "fe80::1", "a-b_c", "[0-3]x"])
def test_names_and_addresses(host: str) -> None:
    """Brackets may come first, where no colon follows."""
    assert expand(host) == ([host] if "[" not in host else ["0x", "1x", "2x", "3x"])


def test_one_host() -> None:
    """Neither a range, nor an address with a scope, which may be any text."""
    for text, expected in (("n0", True), ("fe80::1", True), ("n[0-1]", False), ("fe80::1%eth0", False), ("-n0", False)):
        assert is_host(text) == expected, text


def test_the_traits_of_transports() -> None:
    """Simulated hosts are this machine; hosts behind SSH are others, in each respect."""
    simulated, ssh = (
        Pod(parse_slice("cpu-1x1"), (Host("a", "a"),), transport, "cpu").traits for transport in ("local", "ssh")
    )
    assert (simulated.files_are_here, simulated.is_simulated) == (True, True) == (not ssh.files_are_here, True)
    assert (ssh.needs_staging, ssh.is_exclusive, ssh.lists_hosts, ssh.has_login) == (True,) * 4
    assert (simulated.needs_staging, simulated.is_exclusive, simulated.lists_hosts, simulated.has_login) == (False,) * 4
    assert not ssh.is_simulated and ssh.reached == "reached by ssh"


def test_the_traits_of_nodes_of_slurm() -> None:
    """Other machines, as behind SSH; but SLURM decides whose they are, and a pod file cannot name them."""
    slurm, ssh = (Pod(parse_slice("cpu-1x1"), (), transport, "cpu").traits for transport in ("slurm", "ssh"))
    assert (slurm.files_are_here, slurm.needs_staging, slurm.is_simulated, slurm.lists_hosts) == (
        *(ssh.files_are_here, ssh.needs_staging, ssh.is_simulated),
        True,
    )
    assert not (slurm.is_exclusive or slurm.has_login or slurm.in_pod_file) and ssh.in_pod_file


def test_the_topologies_of_v4_are_the_published_ones() -> None:
    """An existing slice is never refused, nor one accepted that does not exist."""
    assert [(s.name, s.topology) for s in find_slices("v4")] == [
        ("v4-8", "2x2x1"),
        ("v4-16", "2x2x2"),
        ("v4-32", "2x2x4"),
        ("v4-64", "2x4x4"),
        ("v4-128", "4x4x4"),
        ("v4-256", "4x4x8"),
        ("v4-384", "4x4x12"),
        ("v4-512", "4x8x8"),
        ("v4-1024", "8x8x8"),
        ("v4-1536", "8x8x12"),
        ("v4-2048", "8x8x16"),
        ("v4-4096", "8x16x16"),
    ]


@pytest.mark.parametrize(
    "name", ["cpu-0x1", "cpu-1x0", "cpu-01x1", "cpu-1x01", "cpu-100000x1", "cpu-1x10000", "cpu-1x1x1"]
)
def test_sizes_that_are_none(name: str) -> None:
    """No zeros in front, and at most 9999 devices."""
    with pytest.raises(UserError, match="unknown slice"):
        parse_slice(name)
    assert parse_slice("cpu-1x9999").devices == 9999


def test_the_limits_of_slice_names() -> None:
    """A name of 100 characters is repeated in full, a longer one is not; ten thousand hosts are allowed."""
    with pytest.raises(UserError, match=f"unknown slice '{'x' * 100}'\n"):
        parse_slice("x" * 100)
    with pytest.raises(UserError, match=r"^unknown slice: x{100}\.\.\. has 101 characters"):
        parse_slice("x" * 101)
    assert parse_slice("cpu-10000x1").hosts == 10_000
    with pytest.raises(UserError, match="has 10001 hosts; at most 10000"):
        parse_slice("cpu-10001x1")


def test_an_unknown_slice_is_told_what_there_is() -> None:
    """The nearest sizes in their order, and every generation with its other name."""
    with pytest.raises(UserError) as raised:
        parse_slice("v3-33")
    first, *forms = str(raised.value).splitlines()
    assert first == "unknown slice 'v3-33'; nearest: v3-8, v3-32, v3-64, v3-128"
    assert forms[0].startswith("TPU generations: v2, v3, v4, v5litepod (v5e), v5p, v6e, tpu7x (7x); ")
    with pytest.raises(UserError, match=r"^unknown slice 'v9'\n"):
        parse_slice("v9")
    assert nearest_slices("v3-33", 2) == ["v3-8", "v3-32"] and nearest_slices("v3-33", 1) == ["v3-32"]
    assert nearest_slices("v3-²")[0].startswith("v3-")
    assert nearest_slices("!") == ["v3-32", "v4-8", "v5litepod-16", "cpu-2x4"]
    assert len(nearest_slices("v9-8")) == 4
    with pytest.raises(UserError, match="unknown slice"):
        find_slices("v9")


def test_a_table_has_its_columns_in_line() -> None:
    """Texts begin in the column of their heading, numbers end there."""
    assert slice_table([parse_slice("v3-8"), parse_slice("v5p-12288")]).splitlines() == [
        "SLICE      HOSTS  DEVICES/HOST  DEVICES  CHIPS  TOPOLOGY",
        "v3-8           1             8        8      4  2x2     ",
        "v5p-12288   1536             4     6144   6144  16x16x24",
    ]


def test_where_a_path_is() -> None:
    """Only files of other machines, which a transport of a newer version has too, get their host's name."""
    places = [location("/w", transport, "host-0") for transport in ("local", "ssh", "newer")]
    assert places == ["/w", "host-0:/w", "host-0:/w"]
    assert location("/w", "ssh", "") == "/w" and location("gs://b/w", "ssh", "host-0") == "gs://b/w"


@pytest.mark.parametrize(
    ("python", "agents", "workers"),
    [
        (None, "python3", "python3"),
        ("3.12", "python3", "3.12"),
        ("/opt/python", "/opt/python", "/opt/python"),
    ],
)
def test_the_interpreter_of_the_agent(python: str | None, agents: str, workers: str) -> None:
    """A version is brought for the workers alone: the agent, which brings it, needs one before."""
    pod = Pod(parse_slice("cpu-1x1"), (Host("a", "a"),), "ssh", "cpu", python=python)
    assert (pod.agent_python, pod.base_python) == (agents, workers)


def test_a_run_that_can_lose_a_host() -> None:
    """With a spare, or with more hosts than it must have."""
    hosts, spare = (Host("a", "a"), Host("b", "b")), (Host("c", "c"),)

    def can_replace(**given: Any) -> bool:
        return Pod(parse_slice("cpu-2x1"), hosts, "ssh", "cpu", **given).can_replace

    assert [can_replace(min_hosts=least) for least in (None, 1, 2)] == [False, True, False]
    assert can_replace(spares=spare) and can_replace(spares=spare, min_hosts=2)

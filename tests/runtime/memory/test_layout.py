"""Values decide which process keeps which part of the state, and which checkpoint in memory is the newest complete one."""

from __future__ import annotations

import pytest

from podrun.runtime.memory.layout import Held, Member, Need, copies, newest_first, shortage, writers


def pod(*parts: int, processes: int = 1) -> list[Member]:
    return [Member(f"host-{number // processes}", part) for number, part in enumerate(parts)]


def held(step: int, writer: int, keeper: int, parts: tuple[int, ...] = (0, 1, 2), attempt: int = 0) -> Held:
    """A file that host-WRITER wrote, part WRITER unless the state is not divided, and that host-KEEPER has now."""
    part = parts[writer] if len(parts) > 1 else parts[0]
    return Held(step, attempt, writer, f"host-{writer}", part, parts, f"host-{keeper}", keeper)


@pytest.mark.parametrize(
    ("members", "write", "copied"),
    [
        (pod(7, 7, 7), [0, 1, 2], {}),  # not divided: each host has all of it
        (pod(1, 2, 3), [0, 1, 2], {0: 1, 1: 2, 2: 0}),
        (pod(1, 2, 1, 2), [0, 1, 2, 3], {}),  # each part is on two hosts already
        (pod(7, 7, 7, 7, processes=2), [0, 2], {}),  # once for each host
        (pod(1, 2, 3, 4, processes=2), [0, 1, 2, 3], {0: 2, 1: 3, 2: 0, 3: 1}),
        (pod(1, 2, processes=2), [0, 1], {}),  # one host
        (pod(7), [0], {}),
    ],
)
def test_each_part_is_on_two_hosts(members: list[Member], write: list[int], copied: dict[int, int]) -> None:
    assert writers(members) == write
    assert copies(members) == copied
    for part, hosts in {m.part: {o.host for o in members if o.part == m.part} for m in members}.items():
        keepers = {members[k].host for w, k in copies(members).items() if members[w].part == part}
        assert len(hosts | keepers) >= min(2, len({m.host for m in members}))


def test_the_newest_checkpoint_that_is_complete() -> None:
    """Without one of three parts a checkpoint is not complete; a copy counts as its part."""
    files = [held(5, writer, writer) for writer in range(3)] + [held(10, 0, 0), held(10, 1, 2)]
    newest, older = newest_first(files)
    assert (newest.step, newest.lacking) == (10, {2})
    assert (older.step, older.lacking) == (5, set())
    (whole,) = newest_first([held(10, 0, 0), held(10, 1, 2), held(10, 2, 2)])
    assert not whole.lacking
    assert whole.described() == "the memory of 2 hosts (1 part from the copy on host-2)"


def test_one_host_is_enough_for_a_state_that_is_not_divided() -> None:
    (one,) = newest_first([held(10, 2, 2, parts=(7,))])
    assert not one.lacking
    assert one.described() == "the memory of 1 host"


def test_parts_of_two_attempts_are_not_mixed() -> None:
    later, earlier = newest_first([held(10, 0, 0, (0, 1), attempt=1), held(10, 1, 1, (0, 1), attempt=0)])
    assert (later.attempt, earlier.attempt) == (1, 0)
    assert later.lacking == {1}
    assert earlier.lacking == {0}


def test_a_part_is_read_from_its_own_host_first_and_not_by_all_from_the_same_other_host() -> None:
    (one,) = newest_first([held(10, writer, writer, parts=(7,)) for writer in range(3)])
    assert one.sources(7, "host-1", 1)[0].keeper == "host-1"
    assert {one.sources(7, "elsewhere", process)[0].keeper for process in range(3)} == {"host-0", "host-1", "host-2"}


def test_the_host_that_lacks_memory_is_named() -> None:
    enough = Need("host-0", 10, 30, 0)
    assert shortage([enough, Need("host-0", 15, 30, 0), Need("host-1", 25, 30, 0)]) is None
    half = Need("host-1", 20_000_000, 30_000_000, 0)
    text = "host-1 needs 40 MB in /dev/shm, and has 30 MB free"
    assert shortage([enough, half, half]) == text
    left = half._replace(others=25_000_000)
    leftover = "; other runs of podrun have 25 MB there, which `podrun clean` frees if they have ended"
    assert shortage([enough, left, left]) == text + leftover

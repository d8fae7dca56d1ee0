"""A bucket whose server fails now and then is used as if it did not, and one that refuses is named with the reason."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from podrun.runtime.storage.bucket_client import Bucket, BucketError

from ...buckets import ADDRESS, BUCKET
from ...fault_proxy import Faults, fault_proxy

SEED = int(os.environ.get("PODRUN_FAULT_SEED", "0"))

Open = Callable[[Faults], Bucket]


@pytest.fixture
def through_proxy(server: tuple[str, dict[str, str]], url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    scheme, env = server
    with ExitStack() as stack:

        def through(faults: Faults) -> Bucket:
            monkeypatch.setenv(ADDRESS[scheme], stack.enter_context(fault_proxy(env[ADDRESS[scheme]], faults)))
            return Bucket(url)

        yield through


@pytest.mark.long
def test_a_server_that_fails_now_and_then(through_proxy: Open, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    faults = Faults(SEED, share=0.4)
    bucket = through_proxy(faults)
    chance = random.Random(SEED)
    kept: dict[str, bytes] = {}
    for number in range(12):
        name, content = f"folder/{number}", chance.randbytes(chance.choice((0, 10, 300_000)))
        (tmp_path / "file").write_bytes(content)
        bucket.put_file(name, tmp_path / "file")
        kept[name] = content
        if number % 3 == 2:
            gone = chance.choice(sorted(kept))
            bucket.delete(gone)
            del kept[gone]
            assert bucket.read(gone) is None
    assert bucket.replace("claim", b"mine", "")
    assert not bucket.replace("claim", b"another's", "")
    assert bucket.sizes() == {**{name: len(content) for name, content in kept.items()}, "claim": 4}
    for name, content in kept.items():
        bucket.get_file(name, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == content
    assert sum(faults.count.values()) >= 5, faults.count


@pytest.mark.long
@pytest.mark.parametrize("status", ["401", "403"])
def test_a_server_that_refuses(through_proxy: Open, status: str) -> None:
    """It is not asked again and again, and the line says who may not do what, and what to do."""
    bucket = through_proxy(Faults(always=status))
    with pytest.raises(BucketError) as refused:
        bucket.put("claim", b"mine")
    message = str(refused.value)
    scheme = bucket.url.partition(":")[0]
    assert message.startswith(f"{scheme}://{BUCKET}: ")
    assert {"gs": "storage.objects.create", "s3": "s3:PutObject"}[scheme] in message
    assert {"gs": "this host's service account", "s3": "key test-key"}[scheme] in message


@pytest.mark.long
@pytest.mark.parametrize("fault", ["wrong bytes", "skewed", "expired"])
def test_what_no_other_try_mends_is_named(through_proxy: Open, fault: str) -> None:
    bucket = through_proxy(Faults(always=fault))
    lines = {
        "wrong bytes": "its checksum never matched",
        "skewed": "have expired" if bucket.url.startswith("gs") else "the clock of this host is wrong",
        "expired": "have expired",
    }
    with pytest.raises(BucketError, match=lines[fault]):
        bucket.put("claim", b"mine")


@pytest.mark.long
def test_wrong_bytes_are_noticed_both_ways(through_proxy: Open, tmp_path: Path) -> None:
    faults = Faults(SEED, share=0.25, kinds=("wrong bytes",))
    bucket = through_proxy(faults)
    content = random.Random(SEED).randbytes(300_000)
    (tmp_path / "file").write_bytes(content)
    for number in range(12):
        bucket.put_file(str(number), tmp_path / "file")
    for number in range(12):
        bucket.get_file(str(number), tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == content == bucket.read(str(number))
    assert bucket.replace("claim", content, "") and not bucket.replace("claim", b"another's", "")
    assert faults.count["wrong bytes"] >= 4

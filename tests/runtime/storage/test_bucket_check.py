"""Try what a host may do with a bucket, verb by verb."""

from __future__ import annotations

from typing import cast

import pytest

from podrun.runtime.storage.bucket_check import problems
from podrun.runtime.storage.bucket_client import Bucket, BucketError, RefusedError


class Guarded:
    """A bucket in memory that allows some verbs."""

    def __init__(self, refused: dict[str, BucketError]) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[str] = []
        self._refused = refused

    def _ask(self, verb: str) -> None:
        self.calls.append(verb)
        if verb in self._refused:
            raise self._refused[verb]

    def put(self, name: str, content: bytes) -> None:
        self._ask("write")
        self.objects[name] = content

    def sizes(self) -> dict[str, int]:
        self._ask("list")
        return {name: len(content) for name, content in self.objects.items()}

    def read(self, name: str) -> bytes | None:
        self._ask("read")
        return self.objects.get(name)

    def delete(self, name: str) -> None:
        self._ask("delete")
        self.objects.pop(name, None)


def tried(bucket: Guarded) -> list[str]:
    return [str(error) for error in problems(cast(Bucket, bucket), "probe")]


def test_all_verbs_are_tried() -> None:
    bucket = Guarded({})
    assert tried(bucket) == []
    assert (bucket.calls, bucket.objects) == (["write", "list", "read", "delete"], {})


@pytest.mark.parametrize("refused", [("write",), ("list", "delete"), ("write", "list", "read", "delete")])
def test_each_missing_permission_is_named(refused: tuple[str, ...]) -> None:
    bucket = Guarded({verb: RefusedError(f"may not {verb}") for verb in refused})
    assert tried(bucket) == [f"may not {verb}" for verb in refused]


def test_no_such_bucket_is_said_once() -> None:
    error = RefusedError("no such bucket")
    assert tried(Guarded(dict.fromkeys(("write", "list", "read", "delete"), error))) == ["no such bucket"]


def test_an_unreachable_bucket_is_not_asked_again() -> None:
    bucket = Guarded({"list": BucketError("unreachable")})
    assert tried(bucket) == ["unreachable"]
    assert bucket.calls == ["write", "list"]

"""Try the operations that a run needs on a bucket: write, list, read, delete.

`podrun check` sends this file to every host, so it imports only the client, the contract and the standard library.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable

from ..contract import UserError
from .bucket_client import Bucket, BucketError, is_unreachable

_CONTENT = b"written by podrun check"


def problems(bucket: Bucket, name: str) -> list[BucketError]:
    """Write, list, read and delete an object called `name`, and return the errors of these operations.

    Ends at the first error that says that the bucket cannot be reached, and returns only this error.
    """
    tries: list[Callable[[], object]] = [
        lambda: bucket.put(name, _CONTENT),
        lambda: bucket.sizes(),
        lambda: bucket.read(name),
        lambda: bucket.delete(name),
    ]
    errors: list[BucketError] = []
    for attempt in tries:
        try:
            attempt()
        except BucketError as error:
            if str(error) not in map(str, errors):
                errors.append(error)
            if is_unreachable(error):
                return [error]
    return errors


def main() -> None:
    """Try the bucket whose URL is on the command line, and print the errors as JSON."""
    url = sys.argv[1]
    errors: list[Exception]
    try:
        # A folder of its own: the listing of a workdir may be long.
        errors = [*problems(Bucket(f"{url}/.podrun-probe-{secrets.token_hex(4)}"), "object")]
    except UserError as error:
        errors = [error]
    print("")
    print(json.dumps({"errors": [str(error) for error in errors], "unreachable": any(map(is_unreachable, errors))}))


if __name__ == "__main__":
    main()

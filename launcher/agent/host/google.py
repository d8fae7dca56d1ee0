"""Query the metadata server of Google Compute Engine, which describes the machine that asks.

See https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional, Tuple

ENV_SERVER = "GCE_METADATA_HOST"
"""Google's own variable for the address of the metadata server. If it is set, there is a server."""
FLAVOR = "Metadata-Flavor"
"""Header that each request must have, and that each answer of the real server has. Its value is `Google`."""
_PRODUCT = "/sys/class/dmi/id/product_name"
_SERVER = "metadata.google.internal"


def metadata_server() -> Optional[str]:
    """Return the address of the metadata server; None if this is not a machine of Google's. Does not use the network."""
    return os.environ.get(ENV_SERVER) or (_SERVER if is_google() else None)


def is_google() -> bool:
    """Return whether this is a machine of Google Compute Engine."""
    try:
        with open(_PRODUCT) as file:
            return "Google" in file.read()
    except OSError:
        return False


def ask_metadata(server: str, key: str, *, timeout: float, limit: int) -> Tuple[bytes, Mapping[str, str]]:
    """Return the first `limit` bytes of the value of a key, such as `instance/id`, and the headers of the answer.

    `timeout` is in seconds, for each read. Raises OSError; its subclass urllib.error.HTTPError has the `code`.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    try:
        request = Request("http://%s/computeMetadata/v1/%s" % (server, key), headers={FLAVOR: "Google"})
        with build_opener(ProxyHandler({})).open(request, timeout=timeout) as answer:
            value, headers = answer.read(limit), answer.headers
            if len(value) < min(limit, int(headers.get("Content-Length", 0))):  # read() does not notice that
                raise OSError("the answer is cut off")
            return value, headers
    except HTTPError as error:
        error.close()  # closes the connection
        raise
    except (HTTPException, ValueError) as error:  # not HTTP, or not an address
        raise OSError(str(error) or type(error).__name__)

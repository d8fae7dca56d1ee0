"""Ask the metadata server, which tells a machine of Google Compute Engine about itself.

See https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional, Tuple

ENV_SERVER = "GCE_METADATA_HOST"
"""Address of the metadata server, by Google's own name for it. Where it is set, there is one."""
FLAVOR = "Metadata-Flavor"
"""Header of every question, and of every answer of the real server, with the value `Google`."""
_PRODUCT = "/sys/class/dmi/id/product_name"
_SERVER = "metadata.google.internal"


def metadata_server() -> Optional[str]:
    """Return the address of the metadata server; None if this is no machine of Google's. Asks nothing from the network."""
    return os.environ.get(ENV_SERVER) or (_SERVER if is_google() else None)


def is_google() -> bool:
    """Return whether this is a machine of Google Compute Engine."""
    try:
        with open(_PRODUCT) as file:
            return "Google" in file.read()
    except OSError:
        return False


def ask_metadata(server: str, key: str, *, timeout: float, limit: int) -> Tuple[bytes, Mapping[str, str]]:
    """Return the first `limit` bytes of a key's value, such as `instance/id`, and the headers of the answer.

    `timeout` is in seconds, for each piece of the answer. Raises OSError; urllib's HTTPError, which is one, has the `code`.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    try:
        request = Request("http://%s/computeMetadata/v1/%s" % (server, key), headers={FLAVOR: "Google"})
        with build_opener(ProxyHandler({})).open(request, timeout=timeout) as answer:
            value, headers = answer.read(limit), answer.headers
            if len(value) < min(limit, int(headers.get("Content-Length", 0))):  # which read() does not notice
                raise OSError("the answer is cut off")
            return value, headers
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    except (HTTPException, ValueError) as error:  # no HTTP, or no address
        raise OSError(str(error) or type(error).__name__)

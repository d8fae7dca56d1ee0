"""List the hosts of the TPU VM that this process runs on, from its metadata server: `--hosts-from metadata`.

The keys are those that JAX reads (jax/_src/clusters/cloud_tpu_cluster.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.error import HTTPError

from podrun.runtime.contract import UnavailableError, UserError
from podrun.runtime.wording import counted

from ...agent.host.google import ENV_SERVER, FLAVOR, ask_metadata, metadata_server
from ...inventory.base import Listing
from ...inventory.tpu_slice import slice_of_topology, slice_of_type, unknown_type
from ...inventory.worker import check_slices, check_worker
from ...pod.in_thread import InThread
from ...pod.pod import Host
from ...pod.ranges import LIMIT, is_host
from ...pod.slices import Slice
from ...yamlfile.short import short
from .google_ssh import google_ssh

_TYPED = "--hosts-from metadata"
_ENDPOINTS = "instance/attributes/worker-network-endpoints"
_WORKER = "instance/attributes/agent-worker-number"
_TYPE = "instance/attributes/accelerator-type"
_ENV = "instance/attributes/tpu-env"
_NUMBER = "instance/id"
_KEYS = (_ENDPOINTS, _WORKER, _TYPE, _ENV, _NUMBER)
_SERVER = re.compile(r"[\w.:\[\]-]{1,253}", re.ASCII)
_LIMIT = 10.0  # seconds for all values: the server is on this machine and answers within milliseconds
_LIMIT_BYTES = 1 << 20  # of a value


def list_hosts() -> Listing:
    """Return hosts, slice and SSH settings.

    Raises:
        UserError: this machine is no worker of a TPU VM, or podrun does not know its type.
        UnavailableError: the metadata server does not answer, or not as expected.
    """
    server = metadata_server()
    if server is None:
        raise UserError(
            f"{_TYPED}: this is no machine of Google Compute Engine; call podrun on a worker of the TPU VM, "
            "or name the TPU VM with --tpu NAME --zone ZONE"
        )
    if not _SERVER.fullmatch(server):
        raise UserError(
            f"{_TYPED}: {ENV_SERVER} is {short(server)}, which is not a name or an address of a metadata server; "
            "unset it, or name the hosts with --hosts"
        )
    asked = InThread(lambda: {key: _ask(server, key) for key in _KEYS}, "metadata")
    if not asked.wait(_LIMIT):
        raise _unavailable(server, f"has not answered within {_LIMIT:.0f} s")
    return read_answers({key: text for key, text in asked.result().items() if text is not None})


def _ask(server: str, key: str) -> str | None:
    """Return the value of a key; None if the server has none."""
    try:
        value, headers = ask_metadata(server, key, timeout=_LIMIT, limit=_LIMIT_BYTES + 1)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise _unavailable(server, f"answers with HTTP status {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):  # the connection's own limit, which may end first
            raise _unavailable(server, f"has not answered within {_LIMIT:.0f} s") from None
        why = getattr(reason, "strerror", None) or reason
        raise _unavailable(server, f"cannot be asked: {short(str(why))}") from None
    if headers.get(FLAVOR) != "Google":
        raise _unavailable(server, f"is not Google's: its answer has no header `{FLAVOR}: Google`")
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise _unavailable(server, f"has no text under {key}") from None
    if len(value) > _LIMIT_BYTES:
        raise _unavailable(server, f"has more than {_LIMIT_BYTES >> 20} MiB under {key}")
    return text.strip()


def _unavailable(server: str, what: str) -> UnavailableError:
    return UnavailableError(
        f"{_TYPED}: the metadata server {what}; "
        f"look at what `curl -H '{FLAVOR}: Google' http://{server}/computeMetadata/v1/{_ENDPOINTS}` prints "
        "here, or name the hosts with --hosts"
    )


def read_answers(values: Mapping[str, str]) -> Listing:
    """Parse and check the values, which are untrusted input. Raises UserError."""
    if not values.get(_ENDPOINTS):
        raise UserError(
            f"{_TYPED}: the metadata server has no {_ENDPOINTS}: this machine is no worker of a TPU VM; "
            "call podrun on one, or name the TPU VM with --tpu NAME --zone ZONE"
        )
    env = _tpu_env(values.get(_ENV, ""))
    entries = values[_ENDPOINTS].split(",", LIMIT)
    addresses = [_address(entry.strip()) for entry in entries]
    check_worker(_TYPED, _WORKER, values.get(_WORKER), len(addresses))
    check_slices(_TYPED, env.get("MEGASCALE_NUM_SLICES"))
    slice = _slice(values.get(_TYPE, ""), env)
    if slice and len(addresses) != slice.hosts:
        raise UserError(
            f"{_TYPED}: {_ENDPOINTS} lists {len(addresses)}, but a {slice.name} has "
            f"{counted(slice.hosts, 'host')}; is the TPU VM being repaired? Else name the hosts with --hosts"
        )
    tpu = env.get("NODE_ID", "")
    prefix = f"{tpu}-w-" if is_host(tpu) else "worker-"
    hosts = tuple(Host(f"{prefix}{worker}", address, address) for worker, address in enumerate(addresses))
    number = values.get(_NUMBER, "")
    known = f"worker-{number}" if number.isascii() and number.isdigit() and len(number) <= 30 else None
    return Listing(hosts, slice=slice, ssh=google_ssh(known))


def _tpu_env(text: str) -> dict[str, str]:
    """Return the variables of `tpu-env`, lines of the form `NAME: 'value'`."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip().strip("'") for name, colon, value in pairs if colon}


def _address(entry: str) -> str:
    """Return the address in an endpoint, such as `unknown:unknown:10.0.0.2`: an IPv4 or IPv6 address, or a host name."""
    parts = entry.split(":", 2)
    address = parts[2] if len(parts) == 3 and not is_host(entry) else entry
    if not is_host(address):
        raise UserError(
            f"{_TYPED}: {_ENDPOINTS} has {short(entry)}, which names no host; it is like unknown:unknown:10.0.0.2; "
            "name the hosts with --hosts"
        )
    return address


def _slice(kind: str, env: Mapping[str, str]) -> Slice | None:
    """Return the slice; None if the server does not name it. Raises UserError if podrun does not know its type."""
    kind = kind or env.get("ACCELERATOR_TYPE", "")
    if kind:
        slice = slice_of_type(kind)
    elif "TYPE" in env and "TOPOLOGY" in env:
        kind = f"{env['TYPE']} {env['TOPOLOGY']}"
        slice = slice_of_topology(env["TYPE"], env["TOPOLOGY"])
    else:
        return None
    if slice is None:
        raise unknown_type(f"{_TYPED}: this is a", kind)
    return slice

"""Find out whether a virtual environment can be built on this host, without building it."""

from __future__ import annotations

import configparser
import os
import re
import socket
import subprocess
import threading
import time
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional
from urllib.parse import urlsplit

from .environment import REMEDY_INDEX, REMEDY_VENV, find_uv
from .managed_python import REMEDY_NO_PYTHON

_INDEX = "https://pypi.org/simple"
_PYTHONS = "https://github.com"
"""Where uv finds the archives of Python, if it does not find them at its own mirror."""
_LIMIT = 5.0  # seconds for the package index to accept a connection
_VENV_LIMIT = 5.0  # seconds for the interpreter to import venv
_OPTION = re.compile(r"(?:-i|--index-url|--extra-index-url)[\s=]+(\S+)")
_FILES = ("--no-index", "--find-links", "-f")
"""Options by which packages come from files."""
_OFFLINE = ("PIP_NO_INDEX", "PIP_FIND_LINKS", "UV_NO_INDEX", "UV_FIND_LINKS", "UV_OFFLINE")
_UV_CONFIG = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")
_PIP_CONFIG = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")


def why_not_buildable(python: str, text: str, env: Mapping[str, str], brought: bool = False) -> Optional[str]:
    """Return why an environment with these requirements cannot be built, then `; ` and what to do; None if it may work.

    Args:
        python: interpreter that creates the environment.
        text: content of its requirements.txt.
        env: environment variables for pip or uv.
        brought: podrun brings uv.
    """
    by_uv = brought or find_uv(dict(env)) is not None
    if not by_uv and not _has_venv(python, env):
        return "%s cannot make virtual environments: it has no venv or no ensurepip; %s" % (python, REMEDY_VENV)
    servers = [_server(url, env) for url in _indexes(text, env, by_uv)]
    known = [server for server in servers if server is not None]
    if not known or len(known) < len(servers):
        return None
    reasons = _try_all(known)
    if None in reasons:  # pip and uv take what one of several indexes has
        return None
    return "%s cannot be reached: %s; %s" % (known[0].name, reasons[0], REMEDY_INDEX)


def why_no_python(env: Mapping[str, str]) -> Optional[str]:
    """Return why uv cannot download Python, then `; ` and what to do; None if it may work."""
    if env.get("UV_PYTHON_DOWNLOADS_JSON_URL"):  # the file names the servers
        return None
    server = _server(env.get("UV_PYTHON_INSTALL_MIRROR") or _PYTHONS, env)
    why = None if server is None else _try_all([server])[0]
    if server is None or why is None:
        return None
    name = server.name.replace("package index", "server")
    return "Python cannot be downloaded: %s cannot be reached: %s; %s" % (name, why, REMEDY_NO_PYTHON)


def _has_venv(python: str, env: Mapping[str, str]) -> bool:
    try:
        command = [os.path.expanduser(python), "-I", "-c", "import venv, ensurepip"]
        null = subprocess.DEVNULL
        return subprocess.call(command, env=dict(env), stdin=null, stdout=null, stderr=null, timeout=_VENV_LIMIT) == 0
    except (OSError, subprocess.TimeoutExpired):
        return True  # another fact tells what is wrong with the interpreter


def _indexes(text: str, env: Mapping[str, str], by_uv: bool) -> Iterator[str]:
    """Yield the URLs of the package indexes. Yields none if packages may come from files, or a setting is unknown."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    packages = [line for line in lines if not line.startswith("-") and "://" not in line and not line.startswith("/")]
    if not packages or any(line.startswith(_FILES) for line in lines) or any(env.get(name) for name in _OFFLINE):
        return
    settings = {} if by_uv else _pip_settings(env)
    if settings.get("find-links") or settings.get("no-index"):
        return
    if by_uv and any(os.path.exists(os.path.expanduser(path)) for path in _UV_CONFIG):
        return
    named = [match.group(1) for line in lines for match in [_OPTION.match(line)] if match]
    names = ("UV_DEFAULT_INDEX", "UV_INDEX_URL") if by_uv else ("PIP_INDEX_URL",)
    main = next((env[name] for name in names if env.get(name)), settings.get("index-url") or _INDEX)
    more = "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"
    further = " ".join([settings.get("extra-index-url", ""), *(env.get(name, "") for name in more)]).split()
    yield from [*named, *further] if any(_replaces(line) for line in lines) else [main, *named, *further]


def _replaces(line: str) -> bool:
    return line.startswith(("-i", "--index-url"))


def _pip_settings(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings of pip's configuration files; empty if they cannot be read."""
    config = configparser.RawConfigParser(strict=False)
    more = [env["PIP_CONFIG_FILE"]] if env.get("PIP_CONFIG_FILE") else []
    try:
        config.read([*map(os.path.expanduser, _PIP_CONFIG), *more])
    except (configparser.Error, OSError, ValueError):
        return {"no-index": "unknown"}
    sections: List[Dict[str, str]] = [dict(config[name]) for name in ("global", "install") if config.has_section(name)]
    return {key: value for section in sections for key, value in section.items()}


class _Server(NamedTuple):
    """A package index, or the proxy on the way to it."""

    name: str
    host: str
    port: int


def _server(url: str, env: Mapping[str, str]) -> Optional[_Server]:
    """Return the server to which a request for a URL goes; None if it cannot be told, as with some proxies."""
    try:
        parts = urlsplit(url)
        proxy = _proxy(parts.scheme, env)
        if proxy and (env.get("no_proxy") or env.get("NO_PROXY")):
            return None
        server = urlsplit(proxy if "://" in proxy else "http://" + proxy) if proxy else parts
        host, port = server.hostname, server.port or {"http": 80, "https": 443}.get(server.scheme)
    except ValueError:
        return None
    name = "the proxy %s" if proxy else "the package index %s"
    return _Server(name % host, host, port) if host and port else None


def _proxy(scheme: str, env: Mapping[str, str]) -> str:
    names = (scheme + "_proxy", "all_proxy", "PIP_PROXY")
    return next((env[key] for name in names for key in (name, name.upper()) if env.get(key)), "")


def _try_all(servers: List[_Server]) -> List[Optional[str]]:
    """Return for each server why it does not accept a connection; None if it does."""
    late = "no answer within %g s" % _LIMIT
    reasons: List[Optional[str]] = [late for _ in servers]

    def connect(number: int) -> None:
        try:
            socket.create_connection((servers[number].host, servers[number].port), _LIMIT).close()
            reasons[number] = None
        except OSError as error:
            reasons[number] = error.strerror or str(error)

    probes = [threading.Thread(target=connect, args=[number], daemon=True) for number in range(len(servers))]
    for probe in probes:
        probe.start()
    deadline = time.monotonic() + _LIMIT
    for probe in probes:  # a name server may not answer for longer
        probe.join(max(0.0, deadline - time.monotonic()))
    return list(reasons)

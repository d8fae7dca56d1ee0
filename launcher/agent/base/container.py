"""Start a command in a container image: the engine's command stands before it, and variables give environment and mounts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Iterable, List, Optional

if TYPE_CHECKING:
    from .to_agent import Container


def inside(container: Optional[Container], argv: List[str]) -> List[str]:
    """Return the command that runs `argv` in the image; `argv` itself without a container."""
    return argv if container is None else [*map(os.path.expanduser, container["command"]), *argv]


def container_env(container: Optional[Container], env: Dict[str, str], names: Iterable[str]) -> Dict[str, str]:
    """Return the environment for the container engine. In the container, variables in `names` override the image's.

    Makes missing folders, because the engine mounts only existing ones. Raises OSError.
    """
    if container is None:
        return env
    folders = [os.path.abspath(os.path.expanduser(folder)) for folder in container["folders"]]
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
    begin = container["variables"]
    mounts = [env.get(begin + "_BIND", ""), *folders, *map(os.path.expanduser, container["mounts"])]
    passed_on = {begin + "ENV_" + name: env[name] for name in names if name in env}
    if container["path"]:
        passed_on[begin + "ENV_PREPEND_PATH"] = container["path"]
    return dict(env, **passed_on, **{begin + "_BIND": ",".join(filter(None, mounts))})

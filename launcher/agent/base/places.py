"""Folders below `home` on a host, defined once for launcher and agent.

home/agents/HASH.pyz               the agent, with the code compiled for the Python that stored it
home/bundles/KIND-HASH/            code, unpacked
home/envs/KEY/                     virtual environments
home/pythons/VERSION-MACHINE/      managed Pythons
home/data/files/SHA256             data files, named by their digest
home/data/sets/HASH/               a data set: the same files under their own names
home/runs/RUN/hosts/HOST.ATTEMPT/  an agent's folder: spec, output, events

/dev/shm/podrun-RUN/HOST/          checkpoints in memory
"""

from __future__ import annotations

import posixpath

AGENTS = "agents"
BUNDLES = "bundles"
ENVIRONMENTS = "envs"
PYTHONS = "pythons"
DOWNLOADS = "pythons.json"
"""File in a data set with the archive of a Python: its digest, in the format of uv."""
DATA = "data"
DATA_FILES = "files"
DATA_SETS = "sets"
RUNS = "runs"
HOSTS = "hosts"
MEMORY = "/dev/shm"
MEMORY_PREFIX = "podrun-"
SOCKET = "agent.sock"
"""The socket in an agent's folder at which it listens."""


def agent_path(home: str, name: str) -> str:
    """Return the path of the agent's file."""
    return posixpath.join(home, AGENTS, name)


def bundle_folder(home: str, name: str) -> str:
    """Return the folder into which a bundle is unpacked."""
    return posixpath.join(home, BUNDLES, name)


def environments_folder(home: str) -> str:
    """Return the folder of all virtual environments."""
    return posixpath.join(home, ENVIRONMENTS)


def pythons_folder(home: str) -> str:
    """Return the folder of all managed Pythons."""
    return posixpath.join(home, PYTHONS)


def environment_python(home: str, key: str) -> str:
    """Return the interpreter of a virtual environment."""
    return posixpath.join(environments_folder(home), key, "bin", "python")


def data_folder(home: str) -> str:
    """Return the folder of all data that the launcher has distributed."""
    return posixpath.join(home, DATA)


def data_set_folder(home: str, name: str) -> str:
    """Return the folder of a data set. Its files have the names that they have on the launcher's machine."""
    return posixpath.join(data_folder(home), DATA_SETS, name)


def hosts_folder(home: str, run: str) -> str:
    """Return the folder that holds the agents' folders of a run. Hosts that share a home share this folder."""
    return posixpath.join(home, RUNS, run, HOSTS)


def agent_folder(home: str, run: str, host: str, attempt: int) -> str:
    """Return the folder of one host's agent in one attempt."""
    return posixpath.join(hosts_folder(home, run), "%s.%d" % (host, attempt))


def memory_folder(run: str, host: str) -> str:
    """Return the folder of a run's checkpoints in the memory of a host. Simulated hosts have one each on this machine."""
    return posixpath.join(MEMORY, MEMORY_PREFIX + run, host)

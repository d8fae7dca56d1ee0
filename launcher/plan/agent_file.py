"""Pack the agent into one file, and build the commands that store and start it on a host. PURE."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from ..agent.base.places import agent_path
from ..agent.base.protocol import ISOLATED
from ..pod.pod import Pod

_FOLDER = Path(__file__).parents[1] / "agent"
NO_AGENT = "podrun has no agent of its own here"
# Both programs are one line with single quotes only, for csh. 18 (0o022) is write permission for group and others:
# if it is set, or another user owns the file or its folder, somebody could have replaced the agent.
_START = (
    "import os,sys; p=os.path.expanduser(sys.argv[1]); d=os.path.dirname; sys.version_info<(3,8) and "
    "sys.exit('podrun needs Python 3.8 or newer for its agent; this is '+sys.version.split()[0]); "
    "os.path.isfile(p) and all(s.st_uid==os.geteuid() and not s.st_mode&18 for s in map(os.stat,(p,d(p),d(d(p))))) "
    f"or sys.exit('{NO_AGENT}'); sys.path.insert(0,p); from podrun_agent.main import main; main(sys.argv[2:])"
)
# Reads the file from stdin and checks its hash, because a lost connection looks like the end of the file. The agent's own
# code then checks the folders and compiles the modules.
_RECEIVE = (
    "import atexit,hashlib,io,os,sys,zipfile; os.umask(0o077); p=os.path.expanduser(sys.argv[1]); d=sys.stdin.buffer.read(); "
    "zipfile.is_zipfile(io.BytesIO(d)) or sys.exit('not all of it arrived'); m={}; h=hashlib.sha256(); "
    "z=zipfile.ZipFile(io.BytesIO(d)); [h.update(n.encode()+b'\\0'+z.read(n)) for n in z.namelist()]; "
    "h.hexdigest()[:16] in p or sys.exit('not all of it arrived'); "
    "[exec(z.read('podrun_agent/base/%s.py'%n),m) for n in ('private','compiled')]; "
    "m['private_path'](*os.path.split(os.path.dirname(p))); d=m['with_compiled'](d); t=p+'.'+os.urandom(8).hex(); "
    "f=os.open(t,os.O_WRONLY|os.O_CREAT|os.O_EXCL,0o600); atexit.register(lambda: os.path.exists(t) and os.remove(t)); "
    "os.write(f,d)==len(d) or sys.exit('No space left on device'); os.close(f); os.rename(t,p)"
)


@lru_cache(maxsize=1)
def _modules() -> dict[str, bytes]:
    """Return the sources of the agent by their names in its file."""
    return {f"podrun_agent/{path.relative_to(_FOLDER)}": path.read_bytes() for path in sorted(_FOLDER.rglob("*.py"))}


@lru_cache(maxsize=1)
def agent_name() -> str:
    """Return the name of the agent's file. It is needed at every start, so it is the hash of the sources, not of the file."""
    content = hashlib.sha256()
    for name, data in _modules().items():
        content.update(name.encode() + b"\0" + data)
    return f"{content.hexdigest()[:16]}.pyz"


@lru_cache(maxsize=1)
def agent_file() -> tuple[str, bytes]:
    """Return the agent as a zip file that Python can run: its name and content. Deterministic.

    The content is needed once per host. It is not compressed, because that would take longer.
    """
    import io
    import zipfile  # only where the file is sent: the import would delay every start

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in _modules().items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return agent_name(), buffer.getvalue()


def agent_command(pod: Pod, *args: str) -> tuple[str, ...]:
    """Return the command that starts the agent on a host.

    It fails if the file is missing or another user could have changed it.
    """
    return (pod.agent_python, *ISOLATED, _START, agent_path(pod.home, agent_name()), *args)


def receive_command(pod: Pod) -> tuple[str, ...]:
    """Return the command that reads the agent from stdin and stores it."""
    return (pod.agent_python, *ISOLATED, _RECEIVE, agent_path(pod.home, agent_name()))

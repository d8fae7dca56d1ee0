"""`agent prepare`: unpack code and build the environment for a run, then report the host's facts.

The launcher sends a request, then for each needed bundle its head and its bytes. If it requests facts, the agent sends
`ready`, and the launcher an empty object. If wheels of the environment are missing, the agent says so and ends. A prestarted
agent knows the expected interpreter before the request, and queries it at once. The command ends when its stdin ends, and
kills every process that it has started.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from ..base.container import container_env, inside
from ..base.places import BUNDLES, bundle_folder
from ..base.private import UnsafeError, private_path
from ..base.problem import Problem, cannot_write
from ..base.processes import adopt_orphans, end_all
from ..base.protocol import ENV_PROJECT
from ..base.stdin import GoneError, Part, Stdin, end_with_signals
from ..base.to_agent import BUNDLE_HEAD, GATHER_FACTS, PREPARE_REQUEST
from ..base.tool import ToolError, Tools
from .launcher import Launcher
from .packages import InterpreterError, ask_interpreter, find_python
from .store import missing, prune, unpack

if TYPE_CHECKING:
    from ..base.from_agent import Done, Facts, Interpreter, LacksWheels
    from ..base.to_agent import BundleHead, Container, EnvironmentRequest, FactsRequest, PrepareRequest

SETUP_LIMIT = 1800.0  # seconds for one setup command
IMAGE_LIMIT = 1800.0  # seconds to pull an image and start it


def prepare(expected: Optional[str] = None, unread: bytes = b"") -> None:
    """Prepare the host; exits with 1 if that fails.

    Args:
        expected: the interpreter that the request will probably name; None: unknown.
        unread: what has been read of stdin already.
    """
    adopt_orphans()
    end_with_signals()
    launcher = Launcher(Stdin(unread=unread))
    problem: Optional[Problem] = None
    finished = False
    try:
        launcher.answer(Preparation(launcher, expected).run())
        finished = True  # background processes of setup commands keep running
    except GoneError:
        pass
    except Problem as error:
        problem = error
    except OSError as error:
        problem = cannot_write(str(error.filename or "podrun's folder"), error)
    finally:
        if not finished:
            end_all()
    if problem is not None:
        launcher.report(problem)
    if not finished:
        sys.exit(1)


class InterpreterQuery:
    """A query of the expected interpreter in the background, while the launcher still reads the job."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._answer: Any = InterpreterError("no answer yet")
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._answer = ask_interpreter(self._python, {})
        except Exception as error:
            self._answer = error

    def fits(self, request: PrepareRequest, python: str) -> bool:
        """Return whether the request needs the interpreter that was queried, in an unchanged environment."""
        return not (request["env"] or request["setup"] or request["container"]) and python == self._python

    def answer(self) -> Interpreter:
        """Wait for the facts of the interpreter. Raises InterpreterError."""
        self._thread.join()
        if isinstance(self._answer, Exception):
            raise self._answer
        answer: Interpreter = self._answer
        return answer


class Preparation:
    """The steps of one request."""

    def __init__(self, launcher: Launcher, expected: Optional[str]) -> None:
        """Read the request. `expected`: the interpreter that it will probably name; None: unknown."""
        self._launcher = launcher
        self._query = None if expected is None else InterpreterQuery(expected)
        request: PrepareRequest = launcher.stdin.frame(PREPARE_REQUEST)
        self._request = request
        self._home = home = os.path.abspath(os.path.expanduser(request["home"]))
        self._env: Dict[str, str] = dict(os.environ, **request["env"])
        try:
            private_path(home, BUNDLES)
        except UnsafeError as error:
            raise Problem(*str(error).split("; ", 1))
        except OSError as error:
            raise cannot_write(home, error)
        self._tools = Tools(launcher.stdin, self._env, home, launcher.alive)
        self._used: List[str] = []

    def run(self) -> Union[Done, LacksWheels]:
        """Prepare the host, unless the launcher must first send wheels. Raises Problem, GoneError."""
        self._receive_bundles()
        python = self._find_python()
        if not isinstance(python, str):
            return python
        self._set_up()
        facts = self._facts(python)
        return {"type": "done", "python": python, "facts": facts, "pruned": prune(self._home, self._used)}

    def _receive_bundles(self) -> None:
        names = self._request["bundles"]
        needed = missing(self._home, names)
        self._launcher.answer({"type": "need", "bundles": needed})
        for _ in needed:
            head: BundleHead = self._launcher.stdin.frame(BUNDLE_HEAD)
            unpack(self._home, head["bundle"], Part(self._launcher.stdin, head["bytes"]))
        self._used += [bundle_folder(self._home, name) for name in names]

    def _find_python(self) -> Union[str, LacksWheels]:
        """Return the workers' interpreter: of the container, of the requirements' virtual environment, or of the host.

        Returns a frame if the launcher must first send wheels to build the environment from.
        """
        if self._request["container"]:
            return self._try_container(self._request["container"])
        wanted = self._request["requirements"]
        if wanted is None:
            return find_python(self._request["python"], self._env)
        return self._ensure_environment(wanted)

    def _ensure_environment(self, wanted: EnvironmentRequest) -> Union[str, LacksWheels]:
        """Return the interpreter of the requirements' virtual environment, which is built if it is missing."""
        from .environment import Environments, LacksWheelsError
        from .managed_python import ManagedPython, ManagedPythons

        say = self._say("environment")
        try:
            if wanted["brings"] is None:
                python = ManagedPython(find_python(self._request["python"], self._env), None)
            else:
                pythons = ManagedPythons(self._home, self._tools, say)
                python = pythons.ensure(self._request["python"], wanted["brings"])
            environments = Environments(self._home, self._tools, say, python.uv)
            inside = environments.ensure(wanted, python.python)
        except LacksWheelsError as error:
            return {"type": "wheels", "target": error.target, "python": error.python}
        folder = environments.folder(wanted["key"])
        self._used.append(folder)
        self._env["VIRTUAL_ENV"] = folder
        self._env["PATH"] = os.pathsep.join([os.path.join(folder, "bin"), self._env.get("PATH", os.defpath)])
        return inside

    def _try_container(self, container: Container) -> str:
        """Start the interpreter in the image, which pulls the image if necessary. Returns the interpreter. Raises Problem."""
        python = self._request["python"]
        image = container["command"][-1]
        env = container_env(container, self._env, self._request["env"])
        say = self._say("environment")
        say("starting %s of the image %s" % (python, image))
        try:
            self._tools.run(inside(container, [python, "-c", ""]), say, IMAGE_LIMIT, env)
        except ToolError as error:
            raise Problem(
                "cannot start %s of the image %s: %s %s" % (python, image, container["command"][0], error),
                "try it there by hand: %s" % " ".join(inside(container, [python, "--version"])),
            )
        return python

    def _set_up(self) -> None:
        if self._request["project"] is not None:
            self._env[ENV_PROJECT] = bundle_folder(self._home, self._request["project"])
        for command in self._request["setup"]:
            self._say("setup")(command)
            try:
                self._tools.run(["sh", "-c", command], self._say("setup"), SETUP_LIMIT, user_command=True)
            except ToolError as error:
                raise Problem("the setup command `%s` %s" % (command, error), "see `setup:` in the pod file")

    def _facts(self, python: str) -> Optional[Facts]:
        wanted = self._request["facts"]
        if wanted is None:
            return None
        from .facts import gather

        self._launcher.answer({"type": "ready"})
        self._launcher.stdin.frame(GATHER_FACTS)
        request: FactsRequest = {
            **wanted,
            "python": python,
            "container": self._request["container"],
            "env": self._request["env"],
            "home": self._request["home"],
        }
        query = self._query if self._query and self._query.fits(self._request, python) else None
        return gather(request, interpreter=None if query is None else query.answer)

    def _say(self, phase: str) -> Any:
        return lambda line: self._launcher.answer({"type": "progress", "phase": phase, "message": line})

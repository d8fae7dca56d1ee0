"""Every Python of a user's program loads the instrument first: it reports what ends the program, and disturbs nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pythons import other_python

from .plain_program import FOLDER, run

ENDS = ("sys", "argparse", "exit(", "SystemExit")
"""Words of programs that end without a traceback."""
RAISES = "def boom():\n    raise ValueError('no such thing\\nmore of it')\n"


@pytest.mark.parametrize(
    ("program", "message", "code"),
    [
        (RAISES + "boom()", "ValueError: no such thing (train.py:2)", 1),
        (
            RAISES + "import threading\nthreading.Thread(target=boom).start()",
            "ValueError: no such thing (train.py:2)",
            0,
        ),
        (RAISES + "import atexit\natexit.register(print, 'late')\nboom()", "ValueError: no such thing (train.py:2)", 1),
        ("import sys\nsys.exit(3)", "exited with code 3 (train.py:2)", 3),
        ("from sys import exit\nexit('no data')", "no data (train.py:2)", 1),
        ("import argparse\np = argparse.ArgumentParser()\np.error('bad')", "exited with code 2 (train.py:3)", 2),
        ("raise SystemExit(3)", "exited with code 3 (train.py:1)", 3),
        ("raise SystemExit('no data')", "no data (train.py:1)", 1),
        ("try:\n    exit(4)\nexcept SystemExit:\n    raise SystemExit(5)", "exited with code 5 (train.py:4)", 5),
        ("try:\n    exit(4)\nexcept SystemExit as e:\n    print(e)\n    raise", "exited with code 4 (train.py:2)", 4),
        (
            "def main():\n    return 6\nif __name__ == '__main__':\n    raise SystemExit(main())",
            "exited with code 6 (train.py:4)",
            6,
        ),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=[1]).start()\nexit(3)",
            "exited with code 3 (train.py:3)",
            3,
        ),
        ("import json\njson.loads('[')", "JSONDecodeError: Expecting value: line 1 column 2 (char 1) (train.py:2)", 1),
        ("this is no Python", "SyntaxError: invalid syntax (train.py, line 1)", 1),
        ("assert False", "AssertionError (train.py:1)", 1),
    ],
)
def test_what_ends_a_program_is_reported(tmp_path: Path, program: str, message: str, code: int) -> None:
    """Once, with the line of the user's own code; what it prints and its exit code stay as they are."""
    done, events = run(tmp_path, program)
    assert [event["message"] for event in events] == [message]
    assert (events[0]["event"], events[0]["kind"], events[0]["program"]) == ("error", "exception", True)
    assert events[0]["code"] == (code or 1)
    assert done.returncode == code
    if not any(word in program for word in ENDS):
        assert done.stderr.rstrip().endswith(events[0]["traceback"].strip().splitlines()[-1])


@pytest.mark.parametrize(
    "program",
    [
        "print('fine')",
        "import sys\nsys.exit()",
        "import sys\nsys.exit(0)",
        "import sys\nsys.exit(256)",
        "raise SystemExit",
        "raise SystemExit(0)",
        "try:\n    exit(3)\nexcept SystemExit:\n    pass",
        "try:\n    exit(3)\nexcept SystemExit:\n    raise SystemExit(0)",
        "import runpy, sys\ntry:\n    runpy.run_module('no_such')\nexcept ImportError:\n    sys.exit()",
        "raise KeyboardInterrupt",
        "import threading\nthreading.Thread(target=lambda: exit(3)).start()",
        RAISES + "try:\n    boom()\nexcept ValueError:\n    pass",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1 / 0'])",
        RAISES + "import os\nif os.fork() == 0:\n    boom()\nos.wait()",
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=divmod, args=(1, 0))\n    p.start()\n    p.join()",
    ],
)
def test_what_ends_no_program_is_not(tmp_path: Path, program: str) -> None:
    """A failure of a child process, or in a thread that leaves, means nothing by itself."""
    assert run(tmp_path, program)[1] == []


TORCHRUN = """
class Failure:
    exitcode = 7
class ChildFailedError(Exception):
    def get_first_failure(self):
        {}return 3, Failure()
raise ChildFailedError("\\n=====\\ntrain.py FAILED\\n-----\\n")
"""


@pytest.mark.parametrize(
    ("before", "hint"),
    [("", "; rank 3 ended first, with exit code 7: its own error is above in the log"), ("self.other; ", "")],
)
def test_a_failure_in_torchrun_names_the_rank(tmp_path: Path, before: str, hint: str) -> None:
    """Its message begins with a line of `=`. Another version of torch may lack the method."""
    events = run(tmp_path, TORCHRUN.format(before))[1]
    assert [event["message"] for event in events] == [f"ChildFailedError: train.py FAILED{hint} (train.py:7)"]


def test_a_message_without_words(tmp_path: Path) -> None:
    events = run(tmp_path, "raise ValueError('...\\n!!')")[1]
    assert [event["message"] for event in events] == ["ValueError: ... (train.py:1)"]


@pytest.mark.parametrize("leave", ["sys.exit(3)", "raise SystemExit(3)", "_thread.exit()"])
def test_a_thread_that_leaves_says_nothing(tmp_path: Path, leave: str) -> None:
    target = f"import _thread, sys, threading\ndef target():\n    {leave}\nthreading.Thread(target=target).start()"
    done, events = run(tmp_path, target)
    assert (done.returncode, done.stderr, events) == (0, "", [])


def test_a_program_behind_a_shell_reports_nothing(tmp_path: Path) -> None:
    """Its shell may try something else; the exit code of the shell is what counts."""
    done, events = run(tmp_path, "raise ValueError", main=False)
    assert (done.returncode, events) == (1, [])


def test_a_program_with_its_own_hook(tmp_path: Path) -> None:
    """Later settings of the program are in force, as ever."""
    done, events = run(tmp_path, "import sys\nsys.excepthook = lambda *_: print('mine')\n1 / 0")
    assert (done.returncode, done.stdout, done.stderr) == (1, "mine\n", "")
    assert [event["message"] for event in events] == ["ZeroDivisionError: division by zero (train.py:3)"]


def test_system_exit_is_as_ever(tmp_path: Path) -> None:
    """It is caught, pickled and shown by the name of the built-in class, and has what `sys.exit` was given."""
    program = (
        "import pickle, sys\n"
        "for given in ((), (None,), (3,), ('no',), ((4, 5),)):\n"
        "    try:\n"
        "        sys.exit(*given)\n"
        "    except SystemExit as error:\n"
        "        again = pickle.loads(pickle.dumps(error))\n"
        "        print(repr(error), error.code, error.args, type(again) is type(error) is SystemExit)\n"
        "class Mine(SystemExit):\n    pass\n"
        "raise Mine(7)\n"
    )
    with_it, without = (run(tmp_path, program, PYTHONPATH=path)[0] for path in (str(FOLDER), ""))
    assert with_it.stdout == without.stdout != ""
    assert with_it.returncode == without.returncode == 7


def test_a_missing_module_is_told_with_the_interpreter(tmp_path: Path) -> None:
    """It may not be the one that has what the program needs."""
    _, events = run(tmp_path, "import no_such_module")
    what = f"ModuleNotFoundError: No module named 'no_such_module' in {sys.executable} (train.py:1)"
    assert [event["message"] for event in events] == [what]


JOINED = """\
import sys, types
module = sys.modules["jax._src.distributed"] = types.ModuleType("jax._src.distributed")
module.global_state = types.SimpleNamespace(client=1)
"""


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        (
            JOINED + "raise RuntimeError('jax.distributed.initialize() must be called before all.')",
            "has joined the pod already",
        ),
        (
            "raise RuntimeError('UNKNOWN: Failed to start RPC server')",
            "; at h:1, which is for JAX's coordinator: another",
        ),
    ],
)
def test_what_jax_does_not_say(tmp_path: Path, program: str, hint: str) -> None:
    _, events = run(tmp_path, program, PODRUN_COORDINATOR="h:1")
    assert hint in events[0]["message"]


def test_other_values_than_the_pods_are_told(tmp_path: Path) -> None:
    """JAX would wait for minutes for processes that nobody starts."""
    (tmp_path / "jax" / "_src").mkdir(parents=True)
    for name in ("__init__", "_src/__init__", "_src/distributed"):
        (tmp_path / "jax" / f"{name}.py").write_text(
            "class State:\n    def initialize(self, *args, **keys):\n        pass\n"
        )
    join = "from jax._src.distributed import State\nState().initialize('h:1', {}, process_id={})\n"
    assert run(tmp_path, join.format(2, 1))[1] == []
    _, events = run(tmp_path, join.format(3, None))
    what = "jax.distributed.initialize() was called with num_processes=3, and podrun has 2; call it without arguments"
    assert [(event["event"], event["message"]) for event in events] == [("note", what)]


MISTAKE = """\
from podrun.runtime.contract import UserError
from podrun.runtime.worker.mistakes import explain_mistakes
explain_mistakes()
def choose():
    raise UserError("no such file; give another")
choose()
"""


def test_a_mistake_is_told_without_a_traceback(tmp_path: Path) -> None:
    """A refusal by podrun's library ends a program with the text and code 2, reported once; other errors are as ever."""
    pod = {
        "COORDINATOR": "h:1",
        "RUN_ID": "r",
        "ATTEMPT": "0",
        "HOST": "a",
        "LOCAL_DEVICE_IDS": "0",
        "SLICE": "cpu-2x1",
    }
    done, events = run(tmp_path, MISTAKE, **{f"PODRUN_{name}": value for name, value in pod.items()})
    assert (done.returncode, done.stderr) == (2, "")  # the launcher prints it
    assert [(event["kind"], event["code"]) for event in events] == [("config", 2)]
    assert events[0]["message"] == "no such file; give another (train.py:5)"
    done, _ = run(tmp_path, MISTAKE, PYTHONPATH="")
    assert (done.returncode, done.stderr) == (2, "podrun: no such file; give another (train.py:5)\n")
    done, events = run(tmp_path, MISTAKE.replace("UserError(", "KeyError("))
    assert (done.returncode, events[-1]["kind"]) == (1, "exception")
    assert "Traceback" in done.stderr


def test_a_sitecustomize_of_the_user_stays_in_force(tmp_path: Path) -> None:
    """It is what `import sitecustomize` gives, and a broken one fails as it does without podrun."""
    user = tmp_path / "user"
    user.mkdir()
    (user / "sitecustomize.py").write_text("import sys\nsys.users = True\nname = 'the user'\n")
    done, _ = run(
        tmp_path,
        "import sys, sitecustomize\nprint(sys.users, sitecustomize.name)",
        PYTHONPATH=f"{FOLDER}:{user}",
    )
    assert done.stdout == "True the user\n", done.stderr


def test_its_folder_under_two_names(tmp_path: Path) -> None:
    """It does not load itself again."""
    (tmp_path / "link").symlink_to(FOLDER)
    done, _ = run(tmp_path, "print('fine')", PYTHONPATH=f"{FOLDER}:{tmp_path / 'link'}")
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_nothing_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    """A program starts as fast as before if it imports little, and has its own files with the names of standard modules."""
    program = "import sys\nprint(*sorted(sys.modules))"
    with_it, without = (set(run(tmp_path, program, PYTHONPATH=path)[0].stdout.split()) for path in (str(FOLDER), ""))
    assert with_it - without <= {"sitecustomize", "atexit"}  # the latter is built in, like all others


def test_other_modules_are_found_as_before(tmp_path: Path) -> None:
    """The finder gives only those that it watches to the others, with their own loaders."""
    program = (
        "import threading, importlib.util\nprint(threading.__spec__.loader.__class__.__name__, threading.__file__)"
    )
    with_it, without = (run(tmp_path, program, PYTHONPATH=path)[0].stdout for path in (str(FOLDER), ""))
    assert with_it == without != ""


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13"])
def test_other_pythons(tmp_path: Path, version: str) -> None:
    """Users' programs have their own."""
    done, events = run(tmp_path, RAISES + "boom()", python=other_python(version))
    assert [event["message"] for event in events] == ["ValueError: no such thing (train.py:2)"]
    assert done.returncode == 1


@pytest.mark.parametrize(
    "before", ["", "import os\nfor name in ('PODRUN_DIR', 'PODRUN_PROCESS_ID'):\n    del os.environ[name]\n"]
)
def test_what_cannot_be_reported_does_not_hide_the_error(tmp_path: Path, before: str) -> None:
    """A full disk, or an environment that the program has emptied, is not worth another traceback."""
    done, events = run(tmp_path, before + RAISES + "boom()", PODRUN_DIR=str(tmp_path / "gone"))
    assert events == []
    assert done.stderr.splitlines()[-2:] == ["ValueError: no such thing", "more of it"]

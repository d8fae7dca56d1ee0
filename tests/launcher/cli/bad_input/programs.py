"""Mistakes with programs of the user's own, on a pod that uses this machine's files."""

from __future__ import annotations

from .case import SIMULATE, Case

OK = {"ok.py": "print('hello')\n"}


def program(*words: str) -> tuple[str, ...]:
    return (*SIMULATE, "--", *words)


PROGRAMS = [
    Case("no program", "there is no program 'trian'", "in the PATH", "install it, or give its path", program("trian")),
    Case(
        "no script", "there is no file trian.py", "for python", "did you mean train.py?", program("python", "trian.py"),
        files={"train.py": ""},
    ),
    Case("checkpoints in memory of a program", "takes only launch.key=value", "checkpoint.memory_every", "before the `--`",
         (*SIMULATE, "checkpoint.memory_every=5", "--", "python", "ok.py"), files=OK),
    Case("a comparison of a program's state", "podrun does not know the state", "launch.verify_every", "remove the key",
         (*SIMULATE, "launch.verify_every=5", "--", "python", "ok.py"), files=OK),
    Case("no such Python", "'python3.99'", "in the PATH", "launch.python=PATH", program("python3.99", "ok.py"), files=OK),
    Case(
        "launch.python", "no program '/no/python'", "launch.python: ", "give the path of a Python",
        (*SIMULATE, "launch.python=/no/python", "--", "python", "ok.py"), files=OK,
    ),
    Case(
        "no script for other machines", "there is no file trian.py", "for python", "did you mean train.py?",
        ("--slice", "cpu-1x1", "--hosts", "nowhere", "--", "python", "trian.py"), files={"train.py": ""},
    ),
    Case("script without python", "there is no program 'ok.py'", "PATH", "-- python ok.py", program("ok.py"), files=OK),
    Case("not executable", "is not executable", "./ok.py", "chmod +x ./ok.py", program("./ok.py"), files=OK),
    Case("a folder", "is a folder, not a program", "./", "name the program in it", program("./")),
    Case("python with a folder", "without a __main__.py", "./", "name a program in it", program("python", "./")),
    Case("no file", "there is no file ./a.sh", "./a.sh", "relative to this folder", program("./a.sh")),
    Case("train.yaml behind dashes", "is not a program", "train.yaml", "podrun ... train.yaml steps=3",
         program("train.yaml", "steps=3")),
    Case("python and train.yaml", "is not a program", "train.yaml", "podrun ... train.yaml", program("python", "train.yaml")),
    Case("both", "train.yaml stands before the `--`", "a train.yaml and a program", "leave one of them out",
         (*SIMULATE, "train.yaml", "--", "python", "ok.py"), files=OK),
    Case("options behind dashes", "the program gets all arguments after", "--slice, --simulate", "come before it",
         ("--", "python", "ok.py", *SIMULATE), files=OK),
    Case("no dashes", "is a program, not a train.yaml", "ok.py", "podrun ... -- python ok.py", (*SIMULATE, "ok.py"),
         files=OK),
    Case("no dashes, options", "no such option", "'--lr'", "podrun ... -- python ok.py --lr 3",
         (*SIMULATE, "ok.py", "--lr", "3"), files=OK),
    Case("no dashes, python", "python is a program", "python", "-- python ok.py", (*SIMULATE, "python", "ok.py"), files=OK),
    Case("nothing behind dashes", "there is no program", "after the `--`", "`podrun run --help`", program()),
    Case("no name", "is empty", "after `--`", "write podrun ... -- python", program("")),
    Case("key of a job", "steps", "a program of your own", "only launch.key=value",
         (*SIMULATE, "steps=3", "--", "python", "ok.py"), files=OK),
]  # fmt: skip

"""Secrets: where their values come from, who may read the file, and that no message shows one."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.secret_values import (
    Secrets,
    missing_secret_message,
    read_secrets,
    read_secrets_file,
    secrets_at_hand,
)
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UserError


def with_secrets(file: Path | None, *names: str) -> Pod:
    return Pod(parse_slice("cpu-1x1"), (Host("a", "a"),), "ssh", "cpu", secrets=names, secrets_file=file)


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "secrets"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_secrets_come_from_the_environment_or_the_file(tmp_path: Path) -> None:
    """The environment goes first, unless it is empty there; what is not asked for is not given; no repr shows a value."""
    path = written(
        tmp_path,
        '# mine\n\n  # indented\n   \nPLAIN=a b#c\nexport EXPORTED = x=y\nQUOTED="it\'s"  # a comment\n'
        "SINGLE='a \"b\"'\nBOTH=file\nEMPTY=file\nNO=x\n",
    )
    pod = with_secrets(path, "PLAIN", "EXPORTED", "QUOTED", "SINGLE", "BOTH", "EMPTY", "ONLY")
    values = read_secrets(pod, {"BOTH": "env", "ONLY": "env", "EMPTY": "", "NO": "env"})
    assert dict(values) == {
        "PLAIN": "a b#c",
        "EXPORTED": "x=y",
        "QUOTED": "it's",
        "SINGLE": 'a "b"',
        "BOTH": "env",
        "EMPTY": "file",
        "ONLY": "env",
    }
    assert repr(values) == "Secrets(PLAIN, EXPORTED, QUOTED, SINGLE, BOTH, EMPTY, ONLY)"
    assert len(values) == 7 and values["PLAIN"] == "a b#c"


def test_a_file_that_nobody_needs_is_not_read(tmp_path: Path) -> None:
    """It may be missing as long as no secret is asked for."""
    assert dict(read_secrets(with_secrets(tmp_path / "missing"), {"A": "x"})) == {}
    assert dict(read_secrets(with_secrets(None, "A"), {"A": "x"})) == {"A": "x"}
    with pytest.raises(UserError, match=r"cannot read .*missing: No such file or directory"):
        read_secrets(with_secrets(tmp_path / "missing", "A"), {"A": "x"})


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "A=hidden\n",
            r"^secrets: B is not set in the environment or .*secrets; export it, or write B=VALUE into /.*$",
        ),
        ("A=hidden\nB=\n", "B is not set"),
        ("A=hidden\nhidden\n", "secrets: line 2 is not NAME=VALUE$"),
        ("A='hidden\n", "line 1 has a quote that is not closed$"),
        ("A='hidden' more\n", "line 1 has a quote that is not closed$"),
        ("\n1=hidden\n" + "hidden\n" * 5, "secrets: line 2 is not NAME=VALUE(; line [3-6] is not NAME=VALUE){4}$"),
    ],
)
def test_secrets_are_never_in_a_message(tmp_path: Path, text: str, what: str) -> None:
    """A message has the name or the line's number, at most five of them, and not what stands there."""
    with pytest.raises(UserError, match=what) as raised:
        read_secrets(with_secrets(written(tmp_path, text), "A", "B"), {})
    assert "hidden" not in str(raised.value)


def test_all_missing_secrets_are_named_at_once() -> None:
    """Without a file, the remedy says how to have one."""
    with pytest.raises(UserError) as raised:
        read_secrets(with_secrets(None, "A", "B", "C"), {"B": "x", "C": ""})
    lines = str(raised.value).splitlines()
    assert lines == [f"secrets: {missing_secret_message(name, None)}" for name in ("A", "C")]
    assert "A is not set in the environment; " in lines[0] and "name that under secrets_file" in lines[0]


@pytest.mark.parametrize("mode", [0o601, 0o602, 0o604, 0o610, 0o620, 0o640, 0o777])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    """Each bit of group and others counts; the message has the mode and the command that closes it."""
    path = written(tmp_path, "A=hidden\n", mode)
    with pytest.raises(UserError, match=rf"\(its mode is {mode:04o}\); run: chmod 600 {path}"):
        read_secrets_file(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_ones_own(tmp_path: Path, mode: int) -> None:
    """The owner may have any permissions."""
    assert dict(read_secrets_file(written(tmp_path, "A=x", mode))) == {"A": "x"}


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    """It is refused without a traceback."""
    path = tmp_path / "secrets"
    path.write_bytes(b"A=\xff\n")
    path.chmod(0o600)
    with pytest.raises(UserError, match="is not a text file"):
        read_secrets_file(path)


def test_values_are_a_copy() -> None:
    """Changing the mapping later does not change the secrets."""
    values = {"A": "x"}
    secrets = Secrets(values)
    values["A"] = "y"
    assert secrets["A"] == "x" and list(secrets) == ["A"]


def test_values_to_hide_are_all_that_are_at_hand(tmp_path: Path) -> None:
    """From the environment and the file, for output may show either; a file that cannot be read hides nothing else."""
    path = written(tmp_path, "A=file\nB=other\nC=unused\n")
    assert secrets_at_hand(with_secrets(path, "A", "B"), {"A": "env", "C": "x"}) == ["env", "file", "other"]
    assert secrets_at_hand(with_secrets(None, "A", "B"), {"A": "env", "B": ""}) == ["env"]
    assert secrets_at_hand(with_secrets(tmp_path / "missing", "A"), {"A": "env"}) == ["env"]
    assert secrets_at_hand(with_secrets(path), {"A": "env"}) == []

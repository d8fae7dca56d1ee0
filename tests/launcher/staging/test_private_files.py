"""Keys and passwords in the project's folder stay on the machine they are on."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from podrun.launcher.run.pack import _name_private
from podrun.launcher.staging.bundles import project_bundle
from podrun.launcher.staging.private_files import is_private_name

from .projects import git, write

PRIVATE = (
    *(
        ".env",
        ".env.local",
        "deploy/prod.env",
        ".envrc",
        "id_rsa",
        "keys/id_ed25519",
        ".ssh/config",
        ".aws/credentials",
    ),
    *(".netrc", ".git-credentials", "server.pem", "tls.key", "gcloud/application_default_credentials.json", ".pypirc"),
    *(".config/gcloud/credentials.db", ".kube/config", ".huggingface/token", "kaggle.json", "ID_RSA", "a b/.env"),
)
SENT = (
    *(
        ".env.example",
        "example.env",
        "environment.py",
        "id_rsa.pub",
        "keys.py",
        "config.json",
        "monkey",
        "train.env.py",
    ),
    *("aws/credentials.py", "ssh/config", "tokens.json", "pem.txt"),
)
CONTENT = {
    "deploy_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n",
    "my-project.json": '{\n "type": "service_account",\n "private_key" : "-----BEGIN"}',
    "login.json": '{"client_id": "x", "refresh_token": "y"}',
}


def packed(folder: Path) -> tuple[set[str], tuple[str, ...]]:
    """Return the files that are sent, and those that are named as private."""
    bundle, _ = project_bundle(folder)
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        return set(archive.getnames()), bundle.private


@pytest.mark.parametrize("kind", ["folder", "git", "tracked"])
def test_keys_are_not_sent(tmp_path: Path, kind: str) -> None:
    """In no kind of project, not even if git tracks them; all others are."""
    write(tmp_path, *PRIVATE, *SENT)
    for name, text in CONTENT.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "test_keys.py").write_text(f"KEY = '''{CONTENT['deploy_key']}'''")
    if kind != "folder":
        git(tmp_path, "init", "-q")
    if kind == "tracked":
        git(tmp_path, "add", "--all", "--force")
    sent, named = packed(tmp_path)
    assert sent == {*SENT, "test_keys.py"}
    assert named == tuple(sorted({*PRIVATE, *CONTENT}))


def test_the_ignore_file_brings_them_back(tmp_path: Path) -> None:
    """With `!`, by name, pattern or folder, whatever they hold; what it ignores is not named."""
    write(tmp_path, *PRIVATE, "train.py")
    for name, text in CONTENT.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".podrunignore").write_text("kaggle.json\n!server.pem\n!.ssh/\n!deploy_key\n!*.env\n")
    sent, named = packed(tmp_path)
    back = {"server.pem", ".ssh/config", "deploy_key", "deploy/prod.env", ".env", "a b/.env"}
    assert sent == {"train.py", ".podrunignore", *back}
    assert {*named} == {*PRIVATE, *CONTENT} - back - {"kaggle.json"}


def test_they_are_named_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    _name_private([*PRIVATE[:6], "a\x1b"])
    error = capsys.readouterr().err
    assert error.startswith("podrun: not sent to the hosts, because they contain keys or passwords: .env, .env.local, ")
    assert "and 2 more; `!.env` in .podrunignore" in error and error.count("\n") == 1


def test_case_and_folders() -> None:
    assert [name for name in PRIVATE if not is_private_name(name)] == []
    assert [name for name in SENT if is_private_name(name)] == []

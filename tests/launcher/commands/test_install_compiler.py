"""`podrun compile --install`: pip itself installs a small package in place of libtpu, from a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from podrun.runtime.compiler_package import CompilerPackage, compiler_package

SHOW = """
from podrun.runtime.compiler_package import compiler_package, use_kept
use_kept("tpu")
import jax, sys
print(compiler_package("tpu").installed, sys.modules["libtpu"].__file__)  # JAX imports it
"""


@pytest.fixture
def package() -> CompilerPackage:
    return compiler_package("tpu")


@pytest.fixture
def env(tmp_path: Path, package: CompilerPackage) -> dict[str, str]:
    """Return the environment of a machine whose index of packages is a folder with one of the right version."""
    wheel(tmp_path / "index", f"{package.version}.7")
    # Of the user's own pip settings one that contradicts ours, too.
    pip = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_USER": "1",
    }
    return {**os.environ, **pip, "PODRUN_HOME": str(tmp_path / "home"), "PYTHONDONTWRITEBYTECODE": ""}


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of libtpu."""
    folder.mkdir(exist_ok=True)
    about = f"libtpu-{version}.dist-info"
    with zipfile.ZipFile(folder / f"libtpu-{version}-py3-none-any.whl", "w") as file:
        file.writestr("libtpu/__init__.py", "def get_library_path(): return None")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: libtpu\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(
            f"{about}/RECORD", f"libtpu/__init__.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
        )


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "podrun.launcher.cli", "compile", *words]


def install(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command("--install", "tpu"), env=env, capture_output=True, text=True, timeout=120)


def compilers(env: dict[str, str]) -> Path:
    return Path(env["PODRUN_HOME"], "compilers")


@pytest.mark.usefixtures("without_libtpu")
def test_it_is_found_where_it_is_kept(env: dict[str, str], package: CompilerPackage, tmp_path: Path) -> None:
    """JAX takes it, before one of another version; it is installed once for two that install at once."""
    both = [subprocess.Popen(command("--install", "tpu"), env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].partition("; ")[0] for process in both)
    folder = compilers(env) / package.folder
    assert said == [
        f"libtpu {package.version}.7 is in {folder} already",
        f"libtpu {package.version}.7, for JAX {package.jax} and {package.tag}, is now in {folder}",
    ]
    assert sorted(path.name for path in compilers(env).iterdir()) == [folder.name, f"{folder.name}.used", "lock"]
    wheel(tmp_path / "other", "0.0.1")
    with zipfile.ZipFile(tmp_path / "other" / "libtpu-0.0.1-py3-none-any.whl") as file:
        file.extractall(tmp_path / "installed")
    for path in ("", str(tmp_path / "installed")):
        kept = {**env, "PODRUN_COMPILERS": str(compilers(env)), "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", SHOW], env=kept, capture_output=True, text=True)
        assert done.stdout.split() == [f"{package.version}.7", f"{folder}/libtpu/__init__.py"], done.stderr
    # The marker says that it was used; after a week without that it may go.
    clean = [sys.executable, "-m", "podrun.launcher.cli", "clean", "--yes"]
    done = subprocess.run(clean, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "compilers of TPUs and GPUs can be removed when" in done.stdout
    assert package.version_in(folder)
    os.utime(f"{folder}.used", (1e9, 1e9))
    done = subprocess.run(clean, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "removed compilers of TPUs and GPUs" in done.stdout
    assert [path.name for path in compilers(env).iterdir()] == ["lock"]


@pytest.mark.usefixtures("without_libtpu")
@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("other", "Could not find a version that satisfies the requirement libtpu=="),
        ("none", "no index of packages can be reached; pip's settings of index and proxy hold"),
    ],
)
def test_what_pip_cannot_install(
    env: dict[str, str], package: CompilerPackage, tmp_path: Path, index: str, reason: str
) -> None:
    if index == "none":  # nobody listens there
        env |= {
            "PIP_NO_INDEX": "0",
            "PIP_FIND_LINKS": "",
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
            "PIP_RETRIES": "1",
        }
    else:
        wheel(tmp_path / "other", "0.0.1")
        env["PIP_FIND_LINKS"] = str(tmp_path / "other")
    done = install(env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"podrun: libtpu=={package.version}.* cannot be installed: {reason}")
    assert [path.name for path in compilers(env).iterdir()] == ["lock"]


@pytest.mark.usefixtures("without_libtpu")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_installation_that_ends_early(
    env: dict[str, str], package: CompilerPackage, tmp_path: Path, how: signal.Signals
) -> None:
    """Leaves nothing that is taken for a compiler; the next one is complete, and waits for a pip that is still there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time, pathlib\n"
        "if any('--target' in word for word in sys.orig_argv):\n"
        f"    pathlib.Path({str(tmp_path / 'pip')!r}).touch(); time.sleep(3)\n"
    )
    process = subprocess.Popen(
        command("--install", "tpu"), env={**env, "PYTHONPATH": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pip").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(how)
    said = process.communicate(timeout=60)[1]
    if how == signal.SIGINT:
        assert (process.returncode, said) == (130, "podrun: interrupted\n")
    done = install(env)
    assert done.returncode == 0, done.stderr
    assert (done.stderr == "podrun: another podrun installs a compiler; waiting for it\n") == (how == signal.SIGKILL)
    folder = package.folder
    assert sorted(path.name for path in compilers(env).iterdir()) == [folder, f"{folder}.used", "lock"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "what is to be compiled? give a train.yaml, or --install tpu for the compiler alone"),
        (("--install", "tpu", "--slice", "v5e-4"), "--install takes no --slice, --pod or --gpu"),
        (("--install", "cuda", "no.yaml"), "no.yaml: cannot read the job"),
    ],
)
def test_mistakes(env: dict[str, str], words: tuple[str, ...], message: str) -> None:
    done = subprocess.run(command(*words), env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and message in done.stderr
    assert not compilers(env).exists()


def test_no_place_for_it(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = install({**env, "PODRUN_HOME": str(tmp_path / "file")})
    if "is installed for" in done.stdout:
        pytest.skip("the compiler is installed")
    assert done.returncode == 2
    assert done.stderr == (
        f"podrun: cannot keep a compiler in {tmp_path}/file: Not a directory; make room there, or set PODRUN_HOME to "
        "another folder\n"
    )


@pytest.fixture
def without_libtpu(package: CompilerPackage) -> None:
    if package.is_installed:
        pytest.skip("the compiler is installed")

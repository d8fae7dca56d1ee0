"""Compilers that are missing, or of another version than JAX asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import pytest

from podrun.runtime.compiler import devices_of
from podrun.runtime.contract import UserError
from podrun.runtime.target import Target

TARGETS = {
    "tpu": Target("v5litepod-16", "tpu", "v5e:4x4", 16, 4),
    "cuda": Target("h100-8", "cuda", "1x1x8", 8, 1, gpu="h100"),
}
PACKAGES = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}
every_platform = pytest.mark.parametrize("platform", PACKAGES)


@every_platform
def test_without_a_compiler_the_extra_is_named(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[platform], None)  # as if it could not be found
    with pytest.raises(
        UserError,
        match=rf"is not installed; .*`pip install '\.\[{platform}\]'` in podrun's folder$",
    ):
        devices_of(TARGETS[platform])


@every_platform
def test_a_compiler_of_another_version_is_refused(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu itself compiles with any JAX, and the plug-in with another only in part: neither says so in an error."""
    package = PACKAGES[platform]
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    about = tmp_path / f"{package}-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(UserError) as refused:
        devices_of(TARGETS[platform])
    wanted = jax.__version__ if platform == "cuda" else "0.0."
    assert str(refused.value).startswith(
        f"{package} 0.0.1 does not belong to JAX {jax.__version__}, which asks for {wanted}"
    )
    assert f"pip install '.[{platform}]'" in str(refused.value)

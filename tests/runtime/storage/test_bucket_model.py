"""A published model in a bucket is read by byte ranges, and gives the arrays of the same folder on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.config import Config
from podrun.runtime.contract import UnavailableError, UserError
from podrun.runtime.models import make_language_model
from podrun.runtime.models.pretrained import load_weights
from podrun.runtime.models.weight_files import ModelFolder, stored_arrays
from podrun.runtime.storage import bucket_client
from podrun.runtime.storage.bucket_client import Bucket
from podrun.runtime.storage.bucket_model import model_in_bucket, with_published

from ...buckets import ADDRESS, BUCKET, bucket_server
from ...fault_proxy import Faults, fault_proxy
from ..models.published import arrays_of, config_of, write_folder


@pytest.fixture(scope="module", params=["gs", "s3"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("bucket")
    with bucket_server(request.param, folder / "log") as env:
        yield request.param, env


@pytest.fixture
def faults(server: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """What happens to the next requests; none fails unless a test says so."""
    scheme, env = server
    faults = Faults()
    with fault_proxy(env[ADDRESS[scheme]], faults) as proxy:
        for name, value in {**env, ADDRESS[scheme]: proxy}.items():
            monkeypatch.setenv(name, value)
        yield faults


def upload(scheme: str, folder: Path, name: str) -> str:
    url = f"{scheme}://{BUCKET}/{name}"
    for path in folder.iterdir():
        Bucket(url).put_file(path.name, path)
    return url


def job(init_from: str) -> Config:
    return Config.model_validate({"steps": 1, "batch_size": 8, "model": {"name": "decoder", "init_from": init_from}})


def opened(url: str) -> ModelFolder:
    folder = model_in_bucket(job(url))
    assert folder is not None
    return folder


def test_the_arrays_of_a_folder(server: tuple[str, dict[str, str]], faults: Faults, tmp_path: Path) -> None:
    """Whole arrays and blocks of them, in one file and in shards; the section `model` is that of config.json."""
    scheme, _ = server
    local = write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"), files=3)
    url = upload(scheme, local, "shards")
    assert with_published(job(url)).model == with_published(job(str(local))).model.model_copy(
        update={"init_from": Path(url)}
    )
    here, there = stored_arrays(local), stored_arrays(opened(url))
    assert here.keys() == there.keys()
    for name, array in here.items():
        blocks: list[tuple[slice, ...]] = [tuple(slice(None) for _ in array.shape)]
        if len(array.shape) == 2:
            blocks += [(slice(3, 9), slice(None)), (slice(None), slice(2, 5)), (slice(1, 2), slice(0, 1))]
        for block in blocks:
            np.testing.assert_array_equal(there[name].part(block), array.part(block))


def test_only_what_is_needed(server: tuple[str, dict[str, str]], faults: Faults, tmp_path: Path) -> None:
    """A quarter of an array's rows costs a quarter of its bytes, however large it is."""
    scheme, _ = server
    rows, columns = 4096, 1024
    arrays = {"model.embed_tokens.weight": np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)}
    url = upload(scheme, write_folder(tmp_path / "one", config_of("llama"), arrays), "one")
    array = stored_arrays(opened(url))["model.embed_tokens.weight"]
    faults.sent.clear()
    part = array.part((slice(1024, 2048), slice(None)))
    np.testing.assert_array_equal(part, arrays["model.embed_tokens.weight"][1024:2048])
    assert faults.sent.total() == part.nbytes == rows * columns  # a quarter of 4 bytes each
    faults.sent.clear()
    whole = array.part((slice(None), slice(0, 512)))  # 16 MB, in several requests
    np.testing.assert_array_equal(whole, arrays["model.embed_tokens.weight"][:, :512])
    assert faults.sent.total() == 2 * whole.nbytes


def test_a_divided_model(server: tuple[str, dict[str, str]], faults: Faults, tmp_path: Path) -> None:
    """Over four devices, as on a disk."""
    scheme, _ = server
    local = write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"))
    url = upload(scheme, local, "whole")
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))

    def load(init_from: str) -> Any:
        config = with_published(job(init_from))
        section: Any = config.model
        model = make_language_model(config, section.vocabulary, np.dtype("float32"))
        shapes = jax.eval_shape(model.variables, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), np.int32))

        def form(leaf: Any) -> Any:
            axis = next((n for n, size in enumerate(leaf.shape) if size % 4 == 0), None)
            spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "fsdp")
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

        return load_weights(
            section, config_of("llama"), jax.tree.map(form, shapes), lambda: None, None, model_in_bucket(config)
        )

    jax.tree.map(np.testing.assert_array_equal, load(url), load(str(local)))


@pytest.mark.usefixtures("faults")
def test_mistakes(server: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    """A wrong bucket or folder, a shard that is missing or cut off: each says what, where, and what to do."""
    scheme, _ = server
    url = upload(scheme, write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"), files=3), "broken")
    for place in (f"{BUCKET}/none", "no-such-bucket/none"):
        missing = rf"^model.init_from: there is no {scheme}://{place}/config.json; .*check the bucket's name"
        if scheme == "s3" and place.startswith("no"):  # GCS does not say which of them is missing
            missing = rf"^model.init_from: {scheme}://no-such-bucket: no such bucket; create it, or correct its name"
        with pytest.raises(UserError, match=missing):
            with_published(job(f"{scheme}://{place}"))
    bucket, folder = Bucket(url), opened(url)
    stored_arrays(folder)
    folder.check_unchanged()
    names = sorted(name for name in bucket.objects() if name.endswith(".safetensors"))
    content = bucket.read(names[1])
    assert content is not None
    bucket.put(names[1], content[:-4])
    with pytest.raises(
        UserError, match=rf"{url}/{names[1]} is incomplete: .* ends at byte .*; copy or download it again"
    ):
        stored_arrays(opened(url))
    with pytest.raises(
        UserError, match=rf"{url}/{names[1]} was replaced while it was read; start again once nothing writes"
    ):
        folder.check_unchanged()
    bucket.delete(names[1])
    with pytest.raises(
        UserError, match=rf"{url}/model.safetensors.index.json names {names[1]}, which is not there; copy or"
    ):
        stored_arrays(opened(url))
    with pytest.raises(ValueError, match=r"the folder gs://a/: .*is not a valid bucket name|no path in the bucket"):
        job("gs://abc")


@pytest.mark.long  # the libraries of buckets try for minutes
def test_no_network(
    server: tuple[str, dict[str, str]], faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is gone in the middle is told with the file and the number of tries."""
    scheme, _ = server
    monkeypatch.setattr(bucket_client, "_RETRY_SECONDS", 0.5)
    arrays = stored_arrays(
        opened(
            upload(scheme, write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"), files=3), "again")
        )
    )
    name = "model.embed_tokens.weight"
    faults.__init__(always="refused")  # type: ignore[misc]
    unreachable = rf"^model.init_from: {scheme}://.*again: cannot read model.*safetensors.* after \d tr"
    with pytest.raises(UnavailableError, match=unreachable):
        arrays[name].part((slice(None), slice(None)))


def test_short_answers(
    server: tuple[str, dict[str, str]], faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer bytes than were asked for are an error, and of an object that was replaced in between, that is the reason."""
    monkeypatch.setattr(bucket_client, "_RETRY_SECONDS", 0.5)
    scheme, name = server[0], "model.embed_tokens.weight"
    url = upload(scheme, write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama")), "short")
    folder = opened(url)
    array = stored_arrays(folder)[name]
    faults.__init__(always="short")  # type: ignore[misc]
    size = array.nbytes
    with pytest.raises(
        UnavailableError, match=rf"{url}/model.safetensors: {size // 2:,} bytes arrived of the {size:,} "
    ):
        array.part((slice(None), slice(None)))
    faults.__init__()  # type: ignore[misc]
    content = Bucket(url).read("model.safetensors")
    assert content is not None
    for end in (array.offset + size // 2, array.offset // 2):
        Bucket(url).put("model.safetensors", content[:end])
        with pytest.raises(
            UserError, match=rf"{url}/model.safetensors was replaced while it was read; start again once"
        ):
            array.part((slice(None), slice(None)))

"""The published model that a run begins with, or has begun with: `model.init_from`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jax

from ..config import Config
from ..contract import UserError, Workdir
from ..models.pretrained import published_config, with_architecture
from ..models.weight_files import ConfigJson, read_json
from ..storage.base import Storage
from ..storage.bucket_model import model_in_bucket
from ..worker.quiet import without_gloo_lines
from .messages import broadcast_text
from .names import META
from .numbered import make_directory, path_of, steps_in


def with_first_model(
    config: Config, workdir: Workdir, storage: Storage | None = None, note: Callable[[str], None] = lambda text: None
) -> tuple[Config, ConfigJson | None]:
    """Complete the section `model` of a job that begins with a published model (`model.init_from`).

    Called on all processes. Process 0 takes the model's config.json from the newest checkpoint if there is one, so that a
    run
    can be resumed without the folder of the published model. It sends config.json to the other processes.

    Args:
        config: the job.
        workdir: the folder of its results.
        storage: storage of a workdir in a bucket; None: it is a folder.
        note: called with a line for the user when a request to a bucket is tried again.

    Returns:
        The complete job, and the model's config.json; (`config`, None) if the job has no `init_from`.

    Raises:
        UserError: as `with_architecture` raises it.
    """
    if getattr(config.model, "init_from", None) is None:
        return config, None
    text = b""
    if jax.process_index() == 0:
        text = json.dumps(
            _of_newest(workdir.checkpoints, storage) or published_config(config, model_in_bucket(config, note))
        ).encode()
    if jax.process_count() > 1:
        with without_gloo_lines():
            text = broadcast_text(text)
    published: ConfigJson = json.loads(text)
    return with_architecture(config, published), published


def _of_newest(folder: Path, storage: Storage | None) -> ConfigJson | None:
    """Return the config.json in the metadata of the newest checkpoint that has one. The restore verifies it later."""
    if storage is not None:
        make_directory(folder)
        storage.before_restore(folder)
    for step in steps_in(folder) if folder.is_dir() else ():
        path = path_of(folder, step)
        try:
            if storage is not None:
                storage.fetch(path)  # the restore needs these files as well
            published: object = read_json(path / META / "metadata").get("published")
        except UserError:
            continue
        if isinstance(published, dict):
            return published
    return None

"""Parts that families of published models share: how their config.json is read, and how their parameters are called.

config.json is what `save_pretrained` of transformers writes. Versions up to 4 write RoPE as `rope_theta` and `rope_scaling`,
version 5 writes `rope_parameters`; both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict

from ...config.model import DecoderModel
from ...contract import UserError

Json = Mapping[str, Any]

NAMES = {
    "model.embed_tokens.weight": "embed.embedding",
    "model.layers.{}.input_layernorm.weight": "layers_{}.attn_norm.scale",
    "model.layers.{}.self_attn.q_proj.weight": "layers_{}.attn.q.kernel",
    "model.layers.{}.self_attn.k_proj.weight": "layers_{}.attn.k.kernel",
    "model.layers.{}.self_attn.v_proj.weight": "layers_{}.attn.v.kernel",
    "model.layers.{}.self_attn.o_proj.weight": "layers_{}.attn.o.kernel",
    "model.layers.{}.post_attention_layernorm.weight": "layers_{}.mlp_norm.scale",
    "model.layers.{}.mlp.gate_proj.weight": "layers_{}.mlp.gate.kernel",
    "model.layers.{}.mlp.up_proj.weight": "layers_{}.mlp.up.kernel",
    "model.layers.{}.mlp.down_proj.weight": "layers_{}.mlp.down.kernel",
    "model.norm.weight": "final_norm.scale",
    "lm_head.weight": "lm_head.kernel",  # not in the files of a model with a tied head
}
"""Names in the files of Llama, and `Decoder`'s name of the same parameter; {} is the layer. `place_of` finds its array.

A `kernel` is [inputs, outputs] here and [outputs, inputs] in the files, so it is transposed; all others are the same.
"""

QKV_BIASES = {f"model.layers.{{}}.self_attn.{x}_proj.bias": f"layers_{{}}.attn.{x}.bias" for x in "qkv"}
QK_NORMS = {f"model.layers.{{}}.self_attn.{x}_norm.weight": f"layers_{{}}.attn.{x}_norm.scale" for x in "qk"}
POST_NORMS = {
    "model.layers.{}.post_attention_layernorm.weight": "layers_{}.attn_post_norm.scale",
    "model.layers.{}.pre_feedforward_layernorm.weight": "layers_{}.mlp_norm.scale",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers_{}.mlp_post_norm.scale",
}


@dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        section: function from a config.json to the section `model` of a job. Raises UserError for a model that `Decoder`
            cannot be.
        names: names in its files, and `Decoder`'s, like `NAMES`.
    """

    section: Callable[[Json], DecoderModel]
    names: Mapping[str, str]


class Place(NamedTuple):
    """Where a parameter of a published model is in the parameters of `Decoder`."""

    path: tuple[str, ...]
    """Keys of the nested dictionaries."""
    row: int | None
    """Its index along the leading axis of that array, over which layers are stacked; None: it is the whole array."""


def place_of(config: DecoderModel, layer: int | None, name: str) -> Place:
    """Return the place of the parameter `name`, `Decoder`'s name in a family's table.

    Args:
        config: the model.
        layer: the layer, from 0, if the name has {}; otherwise None.
        name: the name, such as "layers_{}.attn.q.kernel".
    """
    first, *rest = name.split(".")
    if layer is None:
        return Place((first, *rest), None)
    return Place(("layers", f"block_{layer % config.period}", *rest), layer // config.period)


def params_from(family: Family, config: DecoderModel, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the parameters of `Decoder` as nested dictionaries, from the arrays of a published model by name.

    Raises:
        UserError: an array is missing, or there is one that the model has no place for.
    """
    places = {
        theirs.format(layer): place_of(config, layer, ours)
        for theirs, ours in family.names.items()
        for layer in (range(config.layers) if "{}" in theirs else [None])
    }
    if config.tied_head:
        del places["lm_head.weight"]
    for problem, wrong in (("are missing", places.keys() - arrays), ("have no place", arrays.keys() - places)):
        if wrong:
            raise UserError(
                f"the model's files do not fit its config.json: {len(wrong)} arrays {problem}: {_few(wrong)}"
            )
    layers: dict[tuple[str, ...], list[np.ndarray]] = {}
    for theirs, place in places.items():  # by growing layer
        array = arrays[theirs].T if place.path[-1] == "kernel" else arrays[theirs]
        layers.setdefault(place.path, []).append(array)
    return unflatten_dict({path: np.stack(each) if path[0] == "layers" else each[0] for path, each in layers.items()})


def _few(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join([*first, "..."][: len(names)])


# --- reading config.json ---


def need(config: Json, key: str) -> Any:
    """Return the value of a key. Raises UserError if it is not there."""
    if config.get(key) is None:
        raise UserError(f"config.json: {key} is missing; the file must be complete, as `save_pretrained` writes it")
    return config[key]


def require(config: Json, **values: Any) -> None:
    """Raise UserError unless each key that is there has this value, or one of these in a tuple."""
    for key, value in values.items():
        allowed = value if isinstance(value, tuple) else (value,)
        given = config.get(key, allowed[0])
        if given not in allowed:
            expected = " or ".join(repr(one) for one in allowed)
            raise UserError(f"config.json: {key} is {given!r}, but model decoder has only {expected} in this family")


def sizes(config: Json, tied: bool) -> dict[str, Any]:
    """Return the keys of `DecoderModel` that all families have. `tied`: whether the head is tied if the file does not say."""
    return {
        "layers": need(config, "num_hidden_layers"),
        "width": need(config, "hidden_size"),
        "heads": need(config, "num_attention_heads"),
        "kv_heads": config.get("num_key_value_heads"),
        "head_size": config.get("head_dim"),
        "mlp_width": need(config, "intermediate_size"),
        "context": need(config, "max_position_embeddings"),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "tied_head": config.get("tie_word_embeddings", tied),
        "initializer_range": config.get("initializer_range", 0.02),
    }


def windows(config: Json, default: list[bool]) -> dict[str, Any]:
    """Return `layer_types` and `window`. `default` is whether each layer slides if the file has no `layer_types`."""
    kinds = {"full_attention": "full", "sliding_attention": "sliding"}
    given = config.get("layer_types")
    if given is None:
        types = ["sliding" if slides else "full" for slides in default]
    else:
        if unknown := set(given) - set(kinds):
            raise UserError(f"config.json: layer_types has {_few(unknown)}; model decoder has {', '.join(kinds)}")
        types = [kinds[kind] for kind in given]
    return {"layer_types": types, "window": need(config, "sliding_window") if "sliding" in types else None}


_ROPE_KEYS = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "truncate"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
"""Keys by type of RoPE, called alike in config.json and here."""
_ORIGINAL = "original_max_position_embeddings"


def rope(config: Json, theta: float = 10_000.0) -> dict[str, Any]:
    """Return the section `rope` of models with one RoPE for all layers. `theta` is theirs if the file does not say it."""
    if given := config.get("rope_parameters"):
        return rope_section(config, given, theta)
    return rope_section(config, config.get("rope_scaling") or {}, config.get("rope_theta") or theta)


def rope_section(config: Json, given: Json, theta: float) -> dict[str, Any]:
    """Return a section `rope` from RoPE's own mapping in config.json, whichever version wrote it."""
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise UserError(f"config.json: RoPE of type {kind!r}; model decoder has {', '.join(_ROPE_KEYS)}")
    keys, known = _ROPE_KEYS[kind], {"rope_type", "type", "rope_theta", _ORIGINAL}
    if unknown := {key for key, value in given.items() if value is not None} - known - set(keys):
        require({"partial_rotary_factor": given.get("partial_rotary_factor", 1.0)}, partial_rotary_factor=1.0)
        if unknown := unknown - {"partial_rotary_factor"}:
            raise UserError(f"config.json: RoPE of type {kind} has {_few(unknown)}, which model decoder does not know")
    section = {"name": kind, "theta": given.get("rope_theta") or theta}
    section |= {key: given[key] for key in keys if given.get(key) is not None}
    if kind == "dynamic":  # transformers takes the model's whole context, and no key of RoPE
        section["original_context"] = need(config, "max_position_embeddings")
    elif kind in ("yarn", "llama3"):
        section["original_context"] = given.get(_ORIGINAL) or need(config, "max_position_embeddings")
    return section

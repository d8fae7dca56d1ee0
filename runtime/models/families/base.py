"""What families of published models share: reading and writing config.json, and the names of arrays.

config.json is what `save_pretrained` of transformers writes. Versions up to 4 write RoPE as `rope_theta` and `rope_scaling`,
version 5 writes `rope_parameters`; both are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...config.model import AnyRope, DecoderModel, DynamicRope, Llama3Rope, YarnRope
from ...contract import UserError
from ..weight_files import ConfigJson

SectionKeys = dict[str, Any]
"""Keys of train.yaml's section `model`, or of a RoPE in it, before the section is made, which checks them."""

HEAD = "lm_head.weight"
"""Name of the head in the files."""

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
    HEAD: "lm_head.kernel",  # not in the files of a model with a tied head
}
"""Names in the files of Llama, and `Decoder`'s name of the same parameter; {} is the layer. `place_of` finds its array.

A `kernel` is [inputs, outputs] here and [outputs, inputs] in the files, so it is transposed; all others are the same.
"""

_ROWS = 128
"""Rows that are transposed at a time. They stay in the processor's cache, which halves the time."""

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
        kind: its `model_type` in config.json.
        architecture: the class of transformers that opens its files.
        section: function from a config.json to the section `model` of a job. Raises UserError for a model that `Decoder`
            cannot be.
        config: function from a section to the keys of config.json that depend on it. From these keys, the function `section`
            returns the same section if the model is of this family.
        names: names in its files, and `Decoder`'s, like `NAMES`; several if an array of the files has them side by side.
        is_transposed: whether a `kernel` is [outputs, inputs] in the files.
        prefix: beginning of the names that older files lack.
    """

    kind: str
    architecture: str
    section: Callable[[ConfigJson], DecoderModel]
    config: Callable[[DecoderModel], ConfigJson]
    names: Mapping[str, str | tuple[str, ...]]
    is_transposed: bool = True
    prefix: str = ""


# --- arrays ---


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


@dataclass(frozen=True)
class Source:
    """The arrays in a family's files that make one parameter of `Decoder`.

    Attributes:
        names: their names: one, or one for each layer if the parameter has a leading axis of layers.
        is_stacked: whether it has that axis.
        is_transposed: whether the files have [outputs, inputs].
        number: the parameter is this one of `among` equal parts along the last axis of each array in the files.
        among: number of these parts.
        is_cut: whether the files may have more rows, of which the first are taken.
    """

    names: tuple[str, ...]
    is_stacked: bool
    is_transposed: bool
    number: int = 0
    among: int = 1
    is_cut: bool = False

    def shape_in_files(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of each array in the files, for a parameter of this shape."""
        one = shape[1:] if self.is_stacked else shape
        one = (*one[:-1], one[-1] * self.among)
        return one[::-1] if self.is_transposed else one

    def fits(self, stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Return whether an array in the files has a shape for a parameter of the shape `shape`."""
        needed = self.shape_in_files(shape)
        return stored == needed or (self.is_cut and stored[1:] == needed[1:] and stored[0] > needed[0])

    def read(
        self, index: tuple[slice, ...], shape: tuple[int, ...], part: Callable[[str, tuple[slice, ...]], np.ndarray]
    ) -> np.ndarray:
        """Return a block of the parameter as float32.

        Args:
            index: the block.
            shape: shape of the whole parameter.
            part: `part(name, block)` returns a block of an array in the files.
        """
        index = tuple(slice(*one.indices(size)[:2]) for one, size in zip(index, shape, strict=True))
        *others, last = index
        index = (*others, slice(last.start + self.number * shape[-1], last.stop + self.number * shape[-1]))
        if not self.is_stacked:
            return self._block(self.names[0], index, part)
        chosen = self.names[index[0]]
        first = self._block(chosen[0], index[1:], part)
        whole = np.empty((len(chosen), *first.shape), np.float32)
        for number, name in enumerate(chosen):
            whole[number] = first if number == 0 else self._block(name, index[1:], part)
        return whole

    def _block(self, name: str, index: tuple[slice, ...], part: Any) -> np.ndarray:
        if not self.is_transposed:
            return np.array(part(name, index), np.float32, order="C")
        block = part(name, index[::-1])
        whole = np.empty(block.shape[::-1], np.float32)
        for first in range(0, len(block), _ROWS):
            whole[:, first : first + _ROWS] = block[first : first + _ROWS].astype(np.float32).T
        return whole

    def write(self, layer: int, value: np.ndarray) -> np.ndarray:
        """Return the array of the files that is named `names[layer]`, or its part, from the parameter's value."""
        one = value[layer] if self.is_stacked else value
        return one.T if self.is_transposed else one


def sources(family: Family, config: DecoderModel) -> dict[tuple[str, ...], Source]:
    """Return for each parameter of `Decoder`, by its path, the arrays in the family's files that make it."""
    parameters: dict[tuple[str, ...], Source] = {}
    for theirs, ours in family.names.items():
        if theirs == HEAD and config.tied_head:
            continue
        parts = (ours,) if isinstance(ours, str) else ours
        for number, name in enumerate(parts):
            for layer in range(config.layers) if "{}" in theirs else [None]:
                path, row = place_of(config, layer, name)
                before = parameters[path].names if path in parameters else ()  # rows grow with the layer
                parameters[path] = Source(
                    names=(*before, theirs.format(layer)),
                    is_stacked=row is not None,
                    is_transposed=family.is_transposed and path[-1] == "kernel",
                    number=number,
                    among=len(parts),
                    is_cut=path[0] == "positions",
                )
    return parameters


def check_names(family: Family, config: DecoderModel, given: Set[str], where: str) -> None:
    """Raise UserError if the files lack an array of the model, or have one that the model has no place for.

    `given`: names of the arrays in the files.
    """
    needed = {name for source in sources(family, config).values() for name in source.names}
    for problem, wrong in (("are missing", needed - given), ("have no place", given - needed)):
        if wrong:
            raise UserError(f"{where} does not fit its config.json: {len(wrong)} arrays {problem}: {_few(wrong)}")


def _few(names: Set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join([*first, "..."][: len(names)])


# --- reading config.json ---


def need(config: ConfigJson, key: str) -> Any:
    """Return the value of a key. Raises UserError if the key is missing."""
    if config.get(key) is None:
        raise UserError(f"config.json: {key} is missing; the file must be complete, as `save_pretrained` writes it")
    return config[key]


def require(config: ConfigJson, **values: Any) -> None:
    """Raise UserError if a key of `config` has another value than given here. A tuple gives several valid values."""
    for key, value in values.items():
        allowed = value if isinstance(value, tuple) else (value,)
        given = config.get(key, allowed[0])
        if given not in allowed:
            expected = " or ".join(repr(one) for one in allowed)
            raise UserError(f"config.json: {key} is {given!r}, but model decoder has only {expected} in this family")


_MOST = {"num_hidden_layers": 10_000, "vocab_size": 100_000_000}
"""At least ten times those of the largest published models. Parameters of a damaged number of layers would be listed for
minutes, and an array of more than 2^63 bytes cannot even be described."""


def sizes(config: ConfigJson, tied: bool) -> SectionKeys:
    """Return the keys of `DecoderModel` that all families have. `tied`: whether the head is tied if the file does not say."""
    for key, most in _MOST.items():
        if isinstance(given := config.get(key), int | float) and given > most:
            raise UserError(f"config.json: {key} is {given:,}, expected at most {most:,}; is the file damaged?")
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


def windows(config: ConfigJson, default: list[bool]) -> SectionKeys:
    """Return `layer_types` and `window`. `default`: for each layer, whether it slides if the file has no `layer_types`."""
    kinds = {"full_attention": "full", "sliding_attention": "sliding"}
    given = config.get("layer_types")
    if given is None:
        types = ["sliding" if slides else "full" for slides in default]
    else:
        if unknown := set(given) - set(kinds):
            raise UserError(f"config.json: layer_types has {_few(unknown)}; model decoder has {', '.join(kinds)}")
        if len(given) != need(config, "num_hidden_layers"):
            raise UserError(
                f"config.json: layer_types has {len(given)} layers, but num_hidden_layers is {config['num_hidden_layers']}"
            )
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


def rope(config: ConfigJson, theta: float = 10_000.0) -> SectionKeys:
    """Return the section `rope` of models with one RoPE for all layers. `theta`: the value if the file has none.

    As in transformers 5, `rope_scaling`, which older files have and users add to newer ones, comes before
    `rope_parameters`.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return rope_section(config, given, first(config.get("rope_theta"), theta))


def first(given: float | None, default: float) -> float:
    """Return a value of config.json, or the default if it is missing or null. A wrong zero stays, and is refused."""
    return default if given is None else given


def rope_section(config: ConfigJson, given: ConfigJson, theta: float) -> SectionKeys:
    """Return a section `rope` from RoPE's own mapping in config.json, whichever version wrote it."""
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in _ROPE_KEYS:
        raise UserError(
            f"config.json: RoPE of type {kind!r}, which model decoder does not compute; take a model with one of "
            f"{', '.join(_ROPE_KEYS)}"
        )
    require({"partial_rotary_factor": config.get("partial_rotary_factor") or 1.0}, partial_rotary_factor=1.0)
    keys, known = _ROPE_KEYS[kind], {"rope_type", "type", "rope_theta", _ORIGINAL}
    if unknown := {key for key, value in given.items() if value is not None} - known - set(keys):
        require({"partial_rotary_factor": given.get("partial_rotary_factor", 1.0)}, partial_rotary_factor=1.0)
        if unknown := unknown - {"partial_rotary_factor"}:
            raise UserError(f"config.json: RoPE of type {kind} has {_few(unknown)}, which model decoder does not know")
    section = {"name": kind, "theta": first(given.get("rope_theta"), theta)}
    section |= {key: given[key] for key in keys if given.get(key) is not None}
    if kind == "dynamic":  # transformers takes the model's whole context, and no key of RoPE
        section["original_context"] = need(config, "max_position_embeddings")
    elif kind in ("yarn", "llama3"):
        original = config.get(_ORIGINAL) or given.get(_ORIGINAL)  # in this order, as in transformers
        section["original_context"] = original or need(config, "max_position_embeddings")
    return section


# --- writing config.json ---


def common(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json that all families have."""
    rope = section.rope
    return {
        "num_hidden_layers": section.layers,
        "hidden_size": section.width,
        "num_attention_heads": section.heads,
        "num_key_value_heads": section.groups,
        "head_dim": section.size,
        "intermediate_size": section.hidden_width,
        "max_position_embeddings": rope.original_context if isinstance(rope, DynamicRope) else section.context,
        "rms_norm_eps": section.norm_epsilon,
        "tie_word_embeddings": section.tied_head,
        "initializer_range": section.initializer_range,
        "attention_bias": False,
        "attention_dropout": 0.0,
    }


def window_keys(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json about sliding layers."""
    kinds = {True: "sliding_attention", False: "full_attention"}
    types = [kinds[section.is_sliding(layer)] for layer in range(section.layers)]
    return {"layer_types": types, "sliding_window": section.window}


def rope_keys(section: DecoderModel) -> ConfigJson:
    """Return the keys of config.json for one RoPE in all layers, as versions 4 and 5 of transformers write them."""
    given = rope_mapping(section.rope)
    scaling = {key: value for key, value in given.items() if key != "rope_theta"}
    older = None if given["rope_type"] == "default" else scaling
    return {"rope_parameters": given, "rope_theta": section.rope.theta, "rope_scaling": older}


def rope_mapping(rope: AnyRope) -> ConfigJson:
    """Return RoPE's own mapping in config.json."""
    values = {key: getattr(rope, key) for key in _ROPE_KEYS[rope.name]}
    given = {"rope_type": rope.name, "rope_theta": rope.theta, **{k: v for k, v in values.items() if v is not None}}
    if isinstance(rope, YarnRope | Llama3Rope):
        given[_ORIGINAL] = rope.original_context
    return given


def pre_attention_scalar(section: DecoderModel) -> int:
    """Return Gemma's form of the attention's scale, 1 / scale^2, as an integer, as transformers requires."""
    return section.size if section.attention_scale is None else round(section.attention_scale**-2)

"""Shell completion of `key.path=value` overrides, from the schema of train.yaml."""

from __future__ import annotations

from functools import lru_cache

from podrun.runtime.config import Config

from .schema_tree import SchemaTree


def complete_override(words: tuple[str, ...], incomplete: str) -> list[tuple[str, str]]:
    """Return the possible completions of the last word of a command line, each with its description.

    A section ends with a dot, a key with `=`. After the `=` of a key with few values, the completions are these values.
    They include the key and the `=`, except in bash, where `=` separates words.

    Args:
        words: the words between train.yaml and the incomplete one.
        incomplete: the word to complete.
    """
    if words[-1:] == ("=",):
        return _values("".join(words[-2:-1]), "", incomplete)
    if not incomplete and words and "=" not in "".join(words[-2:]):
        return _values(words[-1], "", "")  # click passes an incomplete `=` as an empty word
    key, equals, value = incomplete.partition("=")
    if equals:
        return _values(key, f"{key}=", value)
    section, dot, _ = key.rpartition(".")
    rows = []
    for name, (is_section, description) in _tree().members(section.split(".") if dot else []).items():
        word = f"{section}{dot}{name}"
        if word.startswith(key):
            rows.append((f"{word}{'.' if is_section else '='}", description))
    return rows


def _values(key: str, before: str, incomplete: str) -> list[tuple[str, str]]:
    values = _tree().values(key.split("."))
    return [(f"{before}{value}", "") for value in values if value.startswith(incomplete)]


@lru_cache
def _tree() -> SchemaTree:
    return SchemaTree(Config)

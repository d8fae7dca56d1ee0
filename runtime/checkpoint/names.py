"""What checkpoints are made of, for those that do not need orbax, which takes as long to import as JAX."""

from __future__ import annotations

from typing import Any

Arrays = dict[str, Any]
"""Nested dictionaries of arrays."""

STATE, META = "state", "meta"

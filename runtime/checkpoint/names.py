"""Names in a checkpoint's folder, apart from orbax_files.py, because importing orbax takes as long as importing JAX."""

from __future__ import annotations

STATE, META, METRICS = "state", "meta", "metrics"

"""Names in a checkpoint's folder, apart from orbax_files.py, because importing orbax takes as long as importing JAX."""

from __future__ import annotations

STATE, META, METRICS = "state", "meta", "metrics"
FROZEN = "frozen"  # the parameters that are not trained, if there are any
LINKS = ".podrun-links"  # links to frozen files, beside the checkpoints, until they are moved into the next one
COMMITTED = "commit_success.txt"
"""A file that orbax writes to each of these folders when it is complete."""

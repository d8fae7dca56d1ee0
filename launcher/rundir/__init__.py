"""The directory of a run: spec, events, logs, and readers for them."""

"""The directory of a run: spec, events, logs, and what is read from them."""

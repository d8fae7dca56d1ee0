"""The run directory: spec, events and logs, and their readers."""

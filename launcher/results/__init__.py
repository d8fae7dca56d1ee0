"""Download the results of a run to this machine."""

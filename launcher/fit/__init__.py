"""Search the layouts of a job on a slice: which fit, and which is fastest (`podrun fit`)."""

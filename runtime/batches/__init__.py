"""The examples of a run's steps, computed again from its seed: the process behind `podrun batches`."""

"""Check the hosts of a pod before a run starts. PURE except for `run_preflight` and `bucket`, which ask the hosts."""

"""Judge hosts by their facts before a run starts. PURE except for `run_preflight`, which asks them."""

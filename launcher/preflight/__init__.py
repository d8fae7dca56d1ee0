"""Judge hosts by what they say of themselves, before a run starts. PURE, but for `run_preflight`, which asks them."""

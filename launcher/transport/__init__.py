"""How a host is reached: one module per way, found by name."""

"""Public data sets: their servers, and their download."""

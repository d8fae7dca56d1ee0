"""A job before it runs: `podrun inspect`. From shapes and the compiled step alone, so a model need not fit in memory."""

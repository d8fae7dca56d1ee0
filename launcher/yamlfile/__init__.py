"""Read YAML with line numbers, and describe mistakes in it."""

"""Read YAML with line numbers, and describe its mistakes."""

"""YAML with line numbers, and its mistakes as rows for people."""

"""What the user writes: YAML files and overrides, and their mistakes as rows for people."""

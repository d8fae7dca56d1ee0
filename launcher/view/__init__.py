"""Terminal output: consoles, tables, times, and the filter that makes all output printable."""

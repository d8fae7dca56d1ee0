"""Show text to people: the console, tables, times, and the filter for all output."""

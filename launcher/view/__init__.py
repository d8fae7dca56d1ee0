"""Show text to people: the console, tables, times, and the filter that everything printed passes."""

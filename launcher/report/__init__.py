"""The page of a run: one HTML file with all that is on record about it."""

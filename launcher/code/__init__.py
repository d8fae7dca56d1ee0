"""The code that hosts need: which files, packed by content, and what brings them there."""

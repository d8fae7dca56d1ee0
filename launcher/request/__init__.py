"""Turn what was typed into a checked request."""

"""Save the state, and restore the newest one that all processes can read."""

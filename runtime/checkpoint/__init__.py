"""Save the training state, and restore the newest checkpoint that all processes can read."""

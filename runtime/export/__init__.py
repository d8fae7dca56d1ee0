"""Export the model of a checkpoint to a file format that other programs read."""

"""Write the model of a checkpoint to a file that other programs read."""

"""Text from a trained model: `podrun generate`."""

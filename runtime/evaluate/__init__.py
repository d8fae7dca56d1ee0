"""Validation metrics of a trained model: `podrun evaluate`."""

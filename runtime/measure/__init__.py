"""Measurements of the training loop: throughput, FLOPs, means over epochs, metrics."""

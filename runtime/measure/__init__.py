"""Measurements of the loop: throughput, FLOPs, means of epochs, metrics."""

"""Reach a host: one module for each way, found by name."""

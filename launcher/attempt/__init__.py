"""Supervise one attempt of a run, and find the first cause of its end."""

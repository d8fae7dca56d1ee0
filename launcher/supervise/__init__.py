"""Supervise a run: attempts, restarts, stops, first causes."""

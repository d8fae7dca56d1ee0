"""Run attempt after attempt: policy, restarts, hosts of the next attempt, cleanup."""

"""Kubernetes: the JobSet of a job, and the program of each of its containers."""

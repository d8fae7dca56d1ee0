"""Resolve a command line into a job, a pod and a workdir."""

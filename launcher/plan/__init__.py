"""Compute from a pod and a job what will happen on every host. PURE."""

"""PURE: (pod, job) to everything that will happen on every host."""

"""The runtime: what every process of a pod runs."""

"""The runtime: the program that every process of a pod runs."""

"""Executables (compiled programs) by their content: compile, serialize, share among the processes of a pod, and load."""

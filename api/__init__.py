"""podrun: start a JAX program on every host of a pod, and the parts of a training program.

Light to import: no JAX, no numpy, nothing of the launcher.
"""

"""The launcher: starts the runtime on every host of a pod and watches it. Imports no JAX."""

"""Compile a job before it runs, and keep its executables."""

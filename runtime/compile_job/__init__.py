"""Compile the programs of a job before it runs, and keep them."""

"""Code that runs inside a user's program: it lets JAX find the pod, and reports the exception that ends the program.

The files are sent to each host and come first on the program's PYTHONPATH. Python 3.8+, standard library only. A program
without them (`launch.instrument=false`, another language, `python -I`) runs as well, with less help.
"""

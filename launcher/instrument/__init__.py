"""Files that run inside a user's program: they let JAX find the pod, and report the exception that ends the program.

The files are sent to each host and stand first on the program's PYTHONPATH. Python 3.8+, standard library only. A program
that is not instrumented (`launch.instrument=false`, another language, `python -I`) runs as well, with less help.
"""

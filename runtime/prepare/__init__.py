"""`podrun prepare`: text of many files as shards of token ids, written by several processes. Imports no JAX.

The sources are divided into units, which depend on the sources alone. Each becomes one shard, whichever process writes it and
whenever, so that the folder has the same bytes for any number of workers and after any number of interruptions.
"""

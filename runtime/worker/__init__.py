"""A worker process on its host: workdir, events, stop, and the output of libraries."""

"""A process on its host: its workdir, its events, its stop, and what libraries print in it."""

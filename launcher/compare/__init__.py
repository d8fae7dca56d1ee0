"""`podrun compare`: a job in several variants, one after another on the same pod, and a table of how they differ."""

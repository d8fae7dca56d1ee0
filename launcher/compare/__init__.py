"""`podrun compare`: run variants of a job one after another on the same pod, and compare them in a table."""

"""SLURM: the nodes of a job, commands on them by srun, and runs submitted to its queue."""

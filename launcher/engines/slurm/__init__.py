"""SLURM: the nodes of a job, commands on them by srun, and runs that wait in its queue."""

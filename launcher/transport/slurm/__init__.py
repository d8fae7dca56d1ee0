"""Reach the nodes of a SLURM job by srun."""

"""The entry of SLURM jobs that an earlier podrun has submitted: their batch scripts name it, so it stays at this place."""

"""`podrun sweep`: search values of a job's keys by many trials, on parts of one pod, resumable at any moment."""

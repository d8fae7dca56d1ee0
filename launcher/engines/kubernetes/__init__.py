"""Run jobs on Kubernetes: the JobSet of a job, and what each of its containers does."""

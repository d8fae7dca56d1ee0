"""TPU VMs that are ordered: what gcloud says, and what podrun does about it."""

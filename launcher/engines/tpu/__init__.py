"""TPU VMs that are ordered from Google: queued resources, by gcloud."""

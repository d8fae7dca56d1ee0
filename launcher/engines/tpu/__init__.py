"""TPU VMs: their hosts, and their creation as queued resources by gcloud."""

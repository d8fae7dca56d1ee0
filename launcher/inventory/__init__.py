"""Where the hosts of a pod come from."""

"""Find the hosts of a pod: on the command line, in a pod file, in a hostfile, or simulated."""

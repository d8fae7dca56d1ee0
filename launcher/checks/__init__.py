"""What can be wrong with the hosts of a pod, by what was found out about them. All of it is PURE."""

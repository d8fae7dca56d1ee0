"""Container engines that are installed on the hosts."""

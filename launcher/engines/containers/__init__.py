"""Container engines that are programs of the hosts."""

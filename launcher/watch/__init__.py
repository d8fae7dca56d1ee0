"""Live pages of runs, served to browsers on this machine: `podrun watch`."""

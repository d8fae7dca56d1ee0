"""Where the results of a run are kept: a shared folder, or the disk of process 0. A file for each kind."""

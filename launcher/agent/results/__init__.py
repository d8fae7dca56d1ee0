"""List, verify and send the results of runs on this host: checkpoints and other files."""

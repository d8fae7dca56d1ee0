"""List, verify and send what runs have left on this host: checkpoints and other files."""

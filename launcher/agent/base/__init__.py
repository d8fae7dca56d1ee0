"""Messages, places on disk, processes and private files: the parts that all of the agent uses."""

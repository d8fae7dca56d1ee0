"""All about one engine in one folder: where its hosts come from, how they are reached, what is submitted to it."""

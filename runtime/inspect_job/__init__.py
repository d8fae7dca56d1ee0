"""Inspect a job before it runs (`podrun inspect`), by shapes and the compiled step only, so that arrays need no memory."""

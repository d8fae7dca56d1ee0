"""The command line: options and help; each command parses and calls one function."""

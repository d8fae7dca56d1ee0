"""Engines, one folder each: its source of hosts, its transport, and what is submitted to it."""

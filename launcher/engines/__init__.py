"""Engines: each folder has one engine's source of hosts, its transport, and its submission of jobs."""

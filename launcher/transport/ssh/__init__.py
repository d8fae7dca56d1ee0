"""Reach hosts over SSH, with fabric's connections."""

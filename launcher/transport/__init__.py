"""Transports to hosts: one module each, loaded by name."""

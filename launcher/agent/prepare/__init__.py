"""Prepare the host: code, environments and data, and the facts about them."""

"""SSH transport, built on fabric's connections."""

"""Copy code, data and environment to remote hosts."""

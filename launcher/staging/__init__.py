"""Stage code and environment on remote hosts."""

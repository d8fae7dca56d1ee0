"""What a run leaves on this machine: its spec, its events, its logs; and what can be read from them."""

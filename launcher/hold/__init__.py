"""Held pods: agents and warm interpreters that wait on the hosts for this user's next run."""

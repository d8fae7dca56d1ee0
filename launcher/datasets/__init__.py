"""Public data sets: where they are, and how they come here."""

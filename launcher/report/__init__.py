"""The report page of a run: one HTML file with everything that its records contain."""

"""Several turns."""

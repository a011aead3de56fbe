"""Training on the same rows again: branches of a run, arms side by side; changes no other run."""

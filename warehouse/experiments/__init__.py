"""The same rows asked again: branches of a run, arms that train side by side; changes no other run."""

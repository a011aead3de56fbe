"""The layers that lock a process: imports the standard library alone."""

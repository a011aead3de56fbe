"""Rows of samples: joins tasks, sandbox and rewards, completion by completion."""

"""Graders that need a library: lanes alone load them, by name; imports it and the standard library."""

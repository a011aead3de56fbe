"""The ARC Prize."""

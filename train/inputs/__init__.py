"""What a stage is given, options and stored rows, checked before torch loads: imports no torch."""

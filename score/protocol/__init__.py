"""What scorer and lane say to each other: imports the standard library and numpy alone."""

"""What a child does with each kind of job: imports isolation, protocol, numpy and the standard library."""

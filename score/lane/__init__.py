"""The unprivileged side that forks, watches and ends programs: imports jobs, isolation, protocol, numpy."""

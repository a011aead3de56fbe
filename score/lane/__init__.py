"""The unprivileged side that runs programs: imports lane, isolation, wire, numpy and the standard library."""

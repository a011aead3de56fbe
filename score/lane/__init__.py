"""The unprivileged side, where programs run: imports lane, isolation, wire, numpy and the standard library."""

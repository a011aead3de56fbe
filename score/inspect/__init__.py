"""Verdicts, programs and this machine on the terminal: prints, never writes, decides nothing."""

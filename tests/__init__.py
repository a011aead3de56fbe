"""The tests of every room."""

import signal

# Started in the background by a shell, a process ignores Ctrl-C, and so would commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

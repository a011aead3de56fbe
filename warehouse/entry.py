"""The programs: each loads its command with Ctrl-C as a plain end, not as a traceback of what it imports."""

import importlib
import signal
import sys
from functools import partial
from shlex import quote

from warehouse.start import CPU_SET


def start(module: str, command: str) -> None:
    """Import a command and run it; a package that is not installed is one sentence."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler   # not if nohup ignores it
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        run = getattr(importlib.import_module(module), command)
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            run()
        finally:            # what is left to close has no handler for KeyboardInterrupt
            if interruptible:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in globals():     # one of the rooms: a bug
            raise
        sys.exit(f"Error: {error.name} is not installed in {sys.prefix}. Install what is needed: pip install "
                 f"--no-deps -r {quote(str(CPU_SET))}, or with a GPU pip install 'rollhouse[gpu]'.")


rollout = partial(start, "rollout.cli", "rollout")
score = partial(start, "score.cli", "score")
train = partial(start, "train.cli", "train")
warehouse = partial(start, "warehouse.cli", "cli")
reports = partial(start, "reports.cli", "cli")

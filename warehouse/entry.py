"""The programs: each loads its command with Ctrl-C as a plain end, not as a traceback of what it imports."""

import importlib
import signal
from functools import partial


def start(module: str, command: str) -> None:
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler   # not if nohup ignores it
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = getattr(importlib.import_module(module), command)
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


rollout = partial(start, "rollout.cli", "rollout")
score = partial(start, "score.cli", "score")
train = partial(start, "train.cli", "train")
warehouse = partial(start, "warehouse.cli", "cli")
reports = partial(start, "reports.cli", "cli")

"""What a newcomer runs first: the demo from the package, and the doctor of this machine; imports no stage.

`data` is part of the wheel: the demo's model, tasks and options, and the list of packages for a machine
without a GPU.
"""

from pathlib import Path

DATA = Path(__file__).with_name("data")
CPU_SET = DATA / "requirements-cpu.txt"

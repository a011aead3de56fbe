"""What a newcomer types first: the demo out of the package, the doctor of this machine; imports no stage.

`data` is what the wheel brings: the demo's model, tasks and options, and the list of packages for a machine
without a GPU.
"""

from pathlib import Path

DATA = Path(__file__).with_name("data")
CPU_SET = DATA / "requirements-cpu.txt"

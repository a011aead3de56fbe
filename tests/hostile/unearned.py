"""Programs that try to pass tests they do not deserve to pass (unearned.txt): none adds, as `f` ought to."""

from pathlib import Path

BLOCKS = (Path(__file__).parent / "unearned.txt").read_text().split("=== ")[1:]
UNEARNED: dict[str, str] = {name: code for name, _, code in (block.partition("\n") for block in BLOCKS)}

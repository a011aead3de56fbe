"""What a stage reports to `warehouse doctor` about this machine or a model."""

from dataclasses import dataclass, field
from typing import Any

SAID = "said.json"      # next to a tiny copy of a model: ids, and `train`'s logprobs of all but the first
ADAPTER = "adapter"     # also next to it: a new adapter, which changes none of them


@dataclass
class Finding:
    """Whether a stage can work here, sentences about it, and the command that installs what is missing.

    `facts` are the same for programs. If `able` is False, the last of `lines` is the reason.
    """

    able: bool = True
    lines: list[str] = field(default_factory=list)
    command: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def refuse(self, line: str, command: str | None = None) -> "Finding":
        """The finding with a reason why the stage cannot work, and the command to run."""
        self.able, self.command = False, command
        self.lines.append(line)
        return self

"""Logprobs of a new policy on one stored completion: engines that serve it are compared with them."""

from typing import Any

from train.model.packs import PromptGroup
from train.model.policy import Policy
from train.model.shared_prompt import pack_logprobs
from train.steps.row import Row, RowGroup

PROBE = "probe.json"
LENGTH = 1024                    # most tokens of a probe's prompt and completion


def make_probe(policy: Policy, batch: list[RowGroup], token_budget: int) -> dict[str, Any] | None:
    """Ids of a row, its logprobs by the policy (nats, temperature 1) and by the previous one, for PROBE.

    The row is the longest completion that fits LENGTH with its prompt; None without rows.
    """
    rows = [(group, row) for group in batch for row in group.forwardable if len(row.old_logprobs)]
    if not rows:
        return None

    def cost(chosen: tuple[RowGroup, Row]) -> tuple[int, int]:
        length = chosen[1].num_tokens
        return max(LENGTH, len(chosen[0].stored.prompt_ids) + length), -length
    group, row = min(rows, key=cost)
    [logprobs], _ = pack_logprobs(policy, [PromptGroup(group.prompt_ids, [row.completion_ids], 1.0)],
                                  token_budget=token_budget)
    return {"prompt_ids": group.prompt_ids.tolist(), "completion_ids": row.completion_ids.tolist(),
            "logprobs": logprobs.tolist(), "logprobs_before": row.old_logprobs.tolist()
            if group.stored.temperature == 1 and row.support is None else None}

"""Answers of another model, as texts alone, to rows for `train --loss nll`.

    python examples/texts.py RUN texts.jsonl > rows.jsonl       # lines with task_id and completion
    warehouse import RUN rows.jsonl --iteration 0 --purpose distil

A task's prompt is that of its first rollout in the run. Tokens are those of the run's base model, with the
token that ends a turn.
"""

import json
import sys

import warehouse
from rollout.prompts.prompt_encoder import load_encoder
from warehouse.store.run_folder import open_warehouse

PROMPTS = """
SELECT DISTINCT ON (task_id) task_id, prompt, prompt_ids, prompt_format, format_options, prefill, flip,
       rotations, color_map, pair_order, shown_test
FROM prompts WHERE purpose = 'train' ORDER BY task_id, iteration, group_index"""

run, source = sys.argv[1:]
encoder = load_encoder(open_warehouse(run).model, None)
prompts = {row["task_id"]: row for row in warehouse.open(run).sql(PROMPTS).pl().to_dicts()}
with open(source) as lines:
    for row in map(json.loads, lines):
        if row["task_id"] not in prompts:
            sys.exit(f"Task {row['task_id']} has no prompt yet: `rollout` it first.")
        ids = [*encoder.encode(row["completion"]), encoder.end_id]
        print(json.dumps({**prompts[row["task_id"]], "completion_ids": ids, "completion": row["completion"],
                          "finish_reason": "stop"}))

"""Faults: one file of a run is damaged, and every command says so, or answers as if nothing had happened."""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.chaos.loop import new_run
from tests.fuzz.damage import copy_of, damage_a_file
from tests.fuzz.trials import Said, ask

COUNTS = " UNION ALL ".join(f"SELECT '{table}' AS name, count(*) AS num, round(sum({value}), 6) AS total "
                            f"FROM {table}" for table, value in (
    ("tasks", "position"), ("prompts", "num_prompt_tokens"), ("completions", "list_sum(behaviour_logprobs)"),
    ("samples", "reward"), ("train_samples", "advantage"), ("train_steps", "loss"))) + " ORDER BY ALL"
EVAL = ("--eval", "--split", "train", "--iteration", "1")
# What a stage makes of a run, and the file in which it lies; the others only have to end in a sentence.
STAGES = {"score": (("score", "{run}", "--purpose", "eval"), "samples/iteration=1/purpose=eval/*/part-*"),
          "train": (("train", "{run}"), "policies/2/adapter_model.safetensors"),
          "rollout": (("rollout", "{run}", *EVAL, "--label", "more"),
                      "completions/iteration=1/purpose=eval-more/part-*")}
OTHERS = (("warehouse summary {run}",), ("warehouse watch {run}",), ("reports build {run}",),
          ("warehouse check {run} --fix", "warehouse check {run}", "score {run}", "train {run}"),
          ("warehouse compact {run}", "warehouse check {run}"),
          ("warehouse export {run} {run}/../rows.jsonl",),
          ("warehouse prune {run} --before 1 --yes", "warehouse check {run}"),
          ("warehouse rollback {run} --to 0", "rollout {run}"), ("warehouse log {run}",),
          ("warehouse discard {run} --iteration 1 --purpose train", "rollout {run}"),
          ("score explain {run} 0/t0/0",), ("train export {run} --output {run}/../exported",))
COLUMNS = ("task_id", "sample_index", "completion_ids", "reward", "correct")


def make_run(folder: Path) -> Path:
    """A whole iteration, one that waits for its training, and an evaluation that waits for its score."""
    run = new_run(folder).root
    commands = [["rollout", str(run)], ["score", str(run)], ["train", str(run)], ["rollout", str(run)],
                ["score", str(run)], ["rollout", str(run), *EVAL]]
    for said in ask(commands, folder, 300):
        assert said.code == 0, said
    return run


class Faults:
    """Draws faults of one run and judges what the commands say of each."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.wanted: dict[str, Any] = {}
        for stage in STAGES:
            _, said, made = self._try(stage, run.parent / f"calm-{stage}", None)
            assert all(answer.code == 0 for answer in said), said
            self.wanted[stage] = made
            self.rows = said[1].output

    def fail(self, draw: random.Random, folder: Path) -> list[str]:
        """Damage a file and ask; what was wrong with the answers."""
        chosen = draw.choice([*STAGES, *STAGES, *OTHERS])
        damage, said, made = self._try(chosen, folder, draw)
        wrong = [f"{answer.named}: {answer.traceback}" for answer in said if answer.traceback]
        if not wrong and not damage.startswith(("config.toml", "warehouse.sql", "iterations", "vocabulary")):
            wrong += self._unsaid(damage, chosen, said, made)
        return [f"{damage}: {text}" for text in wrong]

    def _unsaid(self, damage: str, chosen: Any, said: list[Said], made: Any) -> list[str]:
        """Answers that differ from those of the sound run without a word."""
        wrong, gone = [], "manifest.json removed" in damage or "policy.json removed" in damage
        check, rows = said[:2]
        if rows.code == 0 and rows.output != self.rows and not rows.errors and not gone:
            wrong.append(f"other rows without a word:\n{rows.output}")
        # A document that decides nothing may say anything; of tasks the rows count, not the bytes.
        if check.code == 0 and ".json" not in damage and not damage.startswith("tasks"):
            wrong.append("check finds nothing")
        if isinstance(chosen, str) and said[2].code == 0 and made != self.wanted[chosen] and not gone:
            wrong.append(f"{chosen} made something else: {said[2].output}")
        return wrong

    def _try(self, chosen: Any, folder: Path, draw: random.Random | None) -> tuple[str, list[Said], Any]:
        """The damage, the answers of check, sql and of what was chosen, and what a stage made."""
        folder.mkdir()
        run = copy_of(self.run, folder)
        damage = damage_a_file(run, draw) if draw else ""
        texts = STAGES[chosen][:1] if isinstance(chosen, str) else [text.split() for text in chosen]
        commands = [["warehouse", "check", str(run)],
                    ["warehouse", "sql", str(run), COUNTS, "--format", "csv"],
                    *([word.format(run=run) for word in words] for words in texts)]
        said = ask(commands, folder)
        made = content_of(run, STAGES[chosen][1]) if isinstance(chosen, str) else None
        shutil.rmtree(folder)
        return damage, said, made


def content_of(run: Path, pattern: str) -> str:
    """A hash of what a stage wrote, without times."""
    digest = hashlib.sha256()
    for path in sorted(run.glob(pattern)):
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            rows = table.select([name for name in COLUMNS if name in table.column_names]).to_pylist()
            digest.update(json.dumps(rows).encode())
        else:
            digest.update(path.read_bytes())
    return digest.hexdigest()

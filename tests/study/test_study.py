"""The study's own sampler against transformers, its plans, and a small part of the drill."""

import json
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from benchmarks.study.plans import STUDIES
from benchmarks.study.run import SECOND, SMALL, STARTER, execute
from benchmarks.study.sampler import SmallSampler, processed_logprobs
from benchmarks.study.tables import main as tables
from examples.advantages.pass_at_k import pass_at_4
from examples.advantages.prime import prime
from examples.advantages.surprise import surprise
from examples.advantages.value_head import value_head
from rollout.cli import rollout
from rollout.engines.engine import EngineSettings, Request, Sampling
from score.cli import score
from train.cli import train

MODEL = str(STARTER / "model")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sampled(requests, **options):
    engine = SmallSampler(EngineSettings(MODEL, None, 0, 256, dtype="float32"))
    return {each.index: each for each in engine.sample(requests, Sampling(max_tokens=12, **options)) if each}


def test_a_sampled_token_has_the_logprob_that_transformers_gives_it():
    prompts = [list(range(20 + 7 * number, 60 + 11 * number)) for number in range(3)]
    requests = [Request(4 * row + index, prompt, 100 * row + index)
                for row, prompt in enumerate(prompts) for index in range(4)]
    results = sampled(requests)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    for request in requests:
        ids, start = results[request.index].completion_ids, len(request.prompt_ids)
        row = torch.tensor([request.prompt_ids + ids])
        with torch.no_grad():
            logprobs = model(row).logits[0].log_softmax(-1)[start - 1:-1]
        expected = logprobs.gather(1, row[0, start:, None])[:, 0]
        assert results[request.index].logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    alone = sampled([requests[6]])[6]
    assert alone.completion_ids == results[6].completion_ids     # whatever else is in the batch


def test_a_nucleus_and_a_penalty_bend_the_distribution_as_vllm_bends_it():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    seen = torch.tensor([[False, True, False, True]])
    bent = processed_logprobs(logits, seen, Sampling(top_p=0.8, repetition_penalty=2.0)).exp()[0]
    plain = torch.tensor([2.0, 0.5, 0.0, -2.0]).exp()            # the penalty first: .73, .16, .10, .01
    assert bent.tolist() == pytest.approx([*(plain[:2] / plain[:2].sum()).tolist(), 0, 0])


def test_an_advantage_for_pass_at_4_is_what_a_completion_adds_to_it():
    correct = [True, False, True, False, False, False, False]
    rows = [{"group_id": "g", "correct": right} for right in correct]

    def share(sets):
        passed = [any(correct[place] for place in chosen) for chosen in sets]
        return sum(passed) / len(passed)
    for place, advantage in enumerate(pass_at_4(rows)):
        others = [other for other in range(7) if other != place]
        with_it = share([(*three, place) for three in combinations(others, 3)])
        assert advantage == pytest.approx(with_it - share(combinations(others, 4)))


def test_pass_at_k_of_a_group_says_that_it_must_be_larger():
    rows = [{"group_id": "g", "correct": right} for right in (True, False, False, False)]
    with pytest.raises(ValueError, match=r"pass@4 needs .* more than 4 .*largest has 4"):
        pass_at_4(rows)
    larger = [{"group_id": "h", "correct": right} for right in (True, *[False] * 4)]
    assert pass_at_4(rows + larger)[:5] == [0.0] * 4 + [1.0]   # it lost some rewards


def test_a_surprise_bonus_is_more_of_a_token_that_the_sampler_held_unlikely():
    rows = [{"group_id": "g", "reward": reward, "behaviour_logprobs": [0.0, -2.0]} for reward in (1.0, 0.0)]
    assert [each.tolist() for each in surprise(rows)] == [[0.5, 0.52], [-0.5, -0.48]]


def completions(groups: int, size: int) -> list[dict]:
    """Completions of six tokens; what begins with an odd id is right."""
    ids = np.random.default_rng(0).integers(10, 14, (groups * size, 6))
    return [{"iteration": 3, "group_id": f"g{row % groups:02d}", "prompt_ids": np.arange(20, 30),
             "completion_ids": own, "reward": float(own[0] % 2), "correct": bool(own[0] % 2)}
            for row, own in enumerate(ids)]


def test_a_value_head_judges_a_token_by_what_stands_before_it_alone():
    rows = completions(16, 8)
    before = value_head(rows)
    for row in rows[::2]:                             # one half of the groups is judged by the other
        row["completion_ids"] = [*row["completion_ids"][:3], 7, 8, 9]
    after = value_head(rows)
    assert any(len(set(own.tolist())) > 1 for own in before)
    for old, new in zip(before[::2], after[::2], strict=True):
        assert len(new) == 6 and new[:4].tolist() == pytest.approx(old[:4].tolist())


def test_implicit_rewards_tell_right_completions_from_wrong_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIME_MODEL", MODEL)
    monkeypatch.setenv("PRIME_FOLDER", str(tmp_path))
    rows = completions(2, 24)
    outcome = np.array([row["correct"] for row in rows])
    first = prime(rows)
    assert (tmp_path / "4" / "model.safetensors").exists()
    for row in rows:
        row["iteration"] = 4                            # goes on from there
    second = prime(rows)

    def apart(advantages):
        first = np.array([float(own[0]) for own in advantages])
        return first[outcome].mean() - first[~outcome].mean()
    assert all(len(own) == 6 for own in first) and apart(second) > apart(first) > 1


def test_no_two_runs_of_the_studies_share_a_name():
    names = [plan.name for study in STUDIES.values() for plan in study()]
    assert len(names) == len(set(names)) > 300


def test_the_tables_pass_over_the_runs_that_only_tried_whether_they_run(tmp_path: Path) -> None:
    look = {"curve": [[0, 0.5, 0.5]], "fired": []}
    (tmp_path / "results.jsonl").write_text(json.dumps(
        {"study": "smoke", "kind": "drill: cispo", "seed": 0, "onset": 0, "ended": "", "evaluations": {},
         "looks": [look]}) + "\n")
    ended = CliRunner().invoke(tables, [str(tmp_path)], catch_exceptions=False)
    assert (ended.exit_code, ended.output) == (0, "")


def test_the_table_of_claims_is_made_of_the_runs_that_are_there(tmp_path: Path) -> None:
    def line(kind: str, seed: int, right: int, ended: str = "done") -> str:
        return json.dumps({"study": "claims", "kind": kind, "seed": seed, "onset": 0, "ended": ended,
                           "looks": [{}], "evaluations": [],
                           "final": [[task, 16, right] for task in "abc"]}) + "\n"
    (tmp_path / "results.jsonl").write_text(
        line("0: dapo token-truncate", 0, 8) + line("3: dapo none", 0, 4) + line("3: dapo none", 1, 2)
        + line("8: m2po", 0, 4) + line("3: dapo none", 2, 0, "out of time") + line("8: dppo", 0, 1, "died"))
    ended = CliRunner().invoke(tables, [str(tmp_path)], catch_exceptions=False)
    assert ended.output.splitlines()[4:] == [
        "| 0: dapo token-truncate | 0.500 | 0.500 |  |",
        "| 3: dapo none | 0.188 | 0.250, 0.125 | -0.250 (-0.250 .. -0.250) |",
        "| 8: m2po | 0.250 | 0.250 |  |"]


def test_every_option_of_the_studies_is_one_of_its_stage():
    known = {option.name for option in rollout.params}
    plans = [plan for study in STUDIES.values() for plan in study()]
    stages = [stages for plan in plans for stages in (plan.well, plan.ill) if stages]
    assert known >= {*SMALL, *SECOND, *(name for each in stages for name in each.rollout)}
    assert known >= {name for plan in plans for name in plan.drawn}
    for command, given in ((train, {each.train for each in stages}),
                           (score, {each.score for each in stages})):
        for options in given:
            command.make_context("stage", ["run", *options])


@pytest.mark.slow("trains the starter for some iterations")
@pytest.mark.parametrize(("kind", "signal"), [
    ("another adapter served", "wrong_weights"), ("learning rate", "step_kl"),
    ("two tokenizers", "wrong_weights")])
def test_a_run_that_is_broken_fires_in_its_first_broken_iteration(tmp_path: Path, kind: str, signal: str):
    plan = next(plan for plan in STUDIES["drill"]() if plan.name == f"drill/{kind}/0")
    looks = execute(replace(plan, iterations=plan.onset + 1), tmp_path / "run", time.time() + 600)["looks"]
    before, after = ([alarm.partition("@")[0] for alarm in look["fired"]] for look in looks[-2:])
    assert len(looks) == plan.onset + 1 and signal not in before and signal in after

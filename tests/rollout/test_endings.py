"""Completions that end early; what is drawn next, and what is counted as cut off."""

import math
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollout.engines.engine import Request, Sampled, Sampling
from rollout.engines.stopping import Drawn, after_draw, likely, next_draw
from score.cli import score
from tests.building.runs import new_run
from tests.building.scripted import ScriptedEngine, sample
from train.inputs.groups import load_groups
from warehouse.sql.database import connect

PLAIN = Sampling(max_tokens=40)


def decode(ids: list[int]) -> str:
    """One character per token."""
    return "".join(map(chr, ids))


def draw(request: Request, text: str, *, reason: str = "stop",
         sampling: Sampling = PLAIN) -> Request | Sampled:
    ids = [ord(letter) for letter in text]
    return after_draw(request, sampling, Drawn(ids, [-0.5] * len(ids), reason, []), decode)


def test_what_truncation_left_goes_with_each_token_and_equal_tokens_at_its_edge_cost_nothing() -> None:
    thirds = [(7, math.log(1 / 3)), (7, math.log(1 / 3)), (3, math.log(1 / 3)), (9, -math.inf)]
    support, whole = likely(thirds)     # a third token was equally likely, and the engine did not name it
    assert support == [7, 3] and math.log(1 / 3) - whole == pytest.approx(math.log(1 / 2))
    sampling = replace(PLAIN, top_k=2)
    request = after_draw(Request(7, [1, 2], seed=5), sampling,
                         Drawn([*map(ord, "```")], [-0.5] * 3, "abort", [[7, 3]] * 3), decode)
    assert isinstance(request, Request)
    whole_one = after_draw(request, sampling, Drawn([ord("x")], [-0.5], "length", [[4]]), decode)
    assert isinstance(whole_one, Sampled) and whole_one.support == [[7, 3]] * 3 + [[4]]
    assert Sampling(top_k=2, temperature=0).num_likely() == 0, "the likeliest is taken, whatever is cut"


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_why_a_completion_is_over(reason: str) -> None:
    sampled = draw(Request(0, [1], 5), "```python\nx\n```", reason=reason)
    assert isinstance(sampled, Sampled) and sampled.finish_reason == reason


def test_what_goes_on_draws_other_numbers_from_where_it_was_left() -> None:
    request = Request(7, [1, 2], seed=5)
    assert next_draw(request, PLAIN) == ([1, 2], 5, 40)
    begun = draw(request, "ab", reason="abort")
    assert isinstance(begun, Request)
    ids, seed, left = next_draw(begun, PLAIN)
    assert ids == [1, 2, *map(ord, "ab")] and left == 38
    assert seed != 5, "the same seed would draw the same numbers again"


def test_what_is_broken_off_is_gone_on_from() -> None:
    begun = draw(Request(7, [1, 2], seed=5), "ab", reason="abort")
    assert isinstance(begun, Request)
    assert draw(begun, "abab", reason="abort") == replace(
        begun, drawn_ids=[*map(ord, "ababab")], drawn_logprobs=[-0.5] * 6)


class Looping(ScriptedEngine):
    """Every second completion ends as a loop, as the engine of earlier versions found them."""

    def sample(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Sampled]:
        for sampled in super().sample(requests, sampling):
            yield replace(sampled, finish_reason="loop" if sampled.index % 2 else "stop")


def test_a_loop_is_counted_as_cut_off_by_rollout_score_sql_and_train(tmp_path: Path) -> None:
    warehouse = new_run(tmp_path / "run")
    printed = sample(warehouse, Looping(), sampling=Sampling(max_tokens=20))
    assert "50.0% truncated" in printed[0]
    (tmp_path / "reward.py").write_text("def one(completions, finish_reason, **_):\n"
                                        "    return [float(reason == 'stop') for reason in finish_reason]\n")
    done = CliRunner().invoke(score, [str(warehouse.root), "--reward-file", f"{tmp_path / 'reward.py'}:one"])
    assert done.exit_code == 0, done.output
    with closing(connect(warehouse)) as connection:
        def ask(query: str) -> list[tuple]:
            return connection.execute(query).fetchall()
        assert ask("SELECT truncated, reward, count(*) FROM samples GROUP BY ALL ORDER BY ALL") == [
            (False, 1.0, 2), (True, 0.0, 2)]
        assert ask("SELECT truncated_share, loop_share FROM iteration_stats") == [(0.5, 0.5)]
    scorer, = warehouse.state.scorers(0, "train")
    group, = load_groups(warehouse, 0, scorer, truncated_sampling="refuse")
    assert [rollout.truncated for rollout in group.rollouts] == [False, True, False, True]

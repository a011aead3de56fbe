"""Tasks with a grader of their own, which gives rewards of its own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from score.isolation.lockdown import Layer
from score.judging.completions import Item
from score.judging.judge import Judgement, measure, run_programs
from score.rewards.named import DEFAULTS, REWARDS
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.sandbox.tiers import open_lanes
from score.tasks.kinds import graders_of, load_task
from score.tasks.measures import Answer
from warehouse.sources.named import parse_source, read_source
from warehouse.store.errors import StageError

# Gives as many points as the settings say for each letter of the data, and takes one off for each blank.
POINTS = """
def grade(text, payload):
    config, data = payload["config"], payload["data"]
    if text == "spin":
        while True: pass
    if text == "fill": return "x" * 10**12
    if text == "fall": __import__("os").abort()
    if text == "end": __import__("os")._exit(0)
    if text == "raise": raise ValueError("what is this?")
    if text.startswith("["): return __import__("json").loads(text)
    if text == "own": return {"failure": "KeyError: own"}
    if text == "five": return 5
    if text == "nan": return float("nan")
    if text == "huge": return {"share": 1.0, "rewards": {"a": 1e308, "b": 1e308}}
    points, blanks = config["points"] * text.count(data["letter"]), -text.count(" ")
    return {"share": min(max((points + blanks) / config["points"], 0), 1), "shown": text,
            "rewards": {"letters": points, "blanks": blanks}, "metrics": {"length": len(text)}}
"""


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Judgement]]]:
    folder = tmp_path_factory.mktemp("graders")
    (folder / "point_grader.py").write_text(POINTS)
    folder.chmod(0o755)
    task = load_task("t", "graded", {"grader": "point_grader", "config": {"points": 3},
                                     "data": {"letter": "a"}})
    config = LaneConfig(Layer.SECCOMP, preload=("point_grader",), import_paths=(str(folder),))

    def judged(*texts: str) -> list[Judgement]:
        items = [Item(task, Answer(text, None)) for text in texts]
        return measure(items, run_programs(Executor(pool), items))

    with LanePool(config, Limits(cpu_seconds=0.3), 1) as pool:
        yield judged


def test_rewards_of_any_size_are_the_terms_of_the_reward(points: Callable[..., list[Judgement]]) -> None:
    reward = REWARDS[DEFAULTS["graded"]]
    rows = [judgement.measures for judgement in points("aa", "b   ", "", "a")]
    assert [reward.function(row) for row in rows] == [
        {"letters": 6, "blanks": 0}, {"letters": 0, "blanks": -3}, {"letters": 0, "blanks": 0},
        {"letters": 3, "blanks": 0}]
    assert [row.correct for row in rows] == [True, False, False, True]
    assert rows[0].metrics == {"length": 2} and rows[0].fingerprint != rows[3].fingerprint


@settings(max_examples=5)
@given(st.lists(st.text("a \0\n\"\\é𝒳") | st.text(), min_size=1, max_size=4))
def test_any_text_comes_to_the_rewards_as_it_was_written(points: Callable[..., list[Judgement]],
                                                         texts: list[str]) -> None:
    for text, judgement in zip(texts, points(*texts), strict=True):
        full, blanks = 3 * text.count("a"), text.count(" ")
        assert judgement.outcome.error_class is None
        assert judgement.measures.rewards == {"letters": full, "blanks": -blanks}
        assert judgement.measures.metrics == {"length": len(text)}
        assert judgement.measures.correct == (full - blanks >= 3)


@pytest.mark.parametrize(("text", "why"), [
    ("raise", "ValueError: what is this? ("), ("raise", "point_grader.py, line 9)"), ("own", "KeyError: own"),
    ("nan", "it gave {'share': nan}; the share must be from 0 to 1"),
    ("five", "it gave {'share': 5}; the share must be from 0 to 1"), ("huge", "all numbers finite")])
def test_rewards_that_fail_are_the_failure_of_the_task(points: Callable[..., list[Judgement]], text: str,
                                                       why: str) -> None:
    [judgement] = points(text)
    assert judgement.outcome.error_class == "untestable" and judgement.outcome.infrastructure
    assert str(judgement.outcome.error_message).startswith("in the grader point_grader: ")
    assert why in str(judgement.outcome.error_message)


@pytest.mark.parametrize(("text", "error_class"), [
    ("spin", "timeout_cpu"), ("fill", "memory"), ("fall", "crashed"), ("end", "no_result")])
def test_an_answer_that_its_grader_cannot_bear_is_wrong(points: Callable[..., list[Judgement]], text: str,
                                                        error_class: str) -> None:
    [judgement] = points(text)
    assert judgement.outcome.error_class == error_class and not judgement.outcome.infrastructure
    assert str(judgement.outcome.error_message).startswith("in the grader point_grader: ")
    reward = REWARDS[DEFAULTS["graded"]]
    assert reward.function(judgement.measures) == {"graded": 0.0}


def test_an_answer_that_is_nested_too_deep_is_wrong(points: Callable[..., list[Judgement]]) -> None:
    [judgement] = points("[" * 9000)
    assert judgement.outcome.error_class is None and not judgement.measures.correct


def test_the_code_of_a_grader_is_part_of_the_identity(tmp_path: Path) -> None:
    (tmp_path / "made_up").mkdir()
    for name in ("__init__", "more"):
        (tmp_path / "made_up" / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "grader.py").write_text("")
    payload, paths = {"grader": "grader", "modules": ["made_up"]}, [str(tmp_path)]
    before = graders_of([("graded", payload), ("grid", "{")], paths)
    assert before.modules == ("grader", "made_up")
    (tmp_path / "made_up" / "more.py").write_text("x = 2\n")
    after = graders_of([("graded", json.dumps(payload))], paths).versions
    assert after["made_up"] != before.versions["made_up"] and after["grader"] == before.versions["grader"]
    with pytest.raises(StageError, match="The module grader, which grades tasks, is not here"):
        graders_of([("graded", payload)])
    with pytest.raises(StageError, match="'grader' or 'modules' names no Python module"):
        load_task("t", "graded", {"grader": "os; x"})


@pytest.mark.parametrize(("source", "why"), [
    ("x = 1\ndef grade(text, payload)\n    return 1\n",
     "is not Python: .*grader.py, line 2: expected ':'. Correct it"),
    ("x = 1\ny = 1 / 0\n",
     "grader fails while it is imported: ZeroDivisionError: .*grader.py, line 2.*Correct it")])
def test_a_grader_that_cannot_be_loaded_is_its_own_fault(tmp_path: Path, source: str, why: str) -> None:
    (tmp_path / "broken_grader.py").write_text(source)
    tmp_path.chmod(0o755)
    with pytest.raises(StageError, match=why):
        graders_of([("graded", {"grader": "broken_grader"})], [str(tmp_path)])
        open_lanes("C", unsafe=False, limits=Limits(), num_lanes=1, preload=("broken_grader",),
                   import_paths=(str(tmp_path),))


def test_a_name_that_is_none_is_refused() -> None:
    for name in ("a b", "a.b"):
        with pytest.raises(StageError, match=f"package={name} has a sign that no top-level package has"):
            read_source(parse_source(f"examples/sources/verifiers.py:tasks?package={name}", heldout=False))

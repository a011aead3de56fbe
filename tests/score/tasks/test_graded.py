"""Tasks that somebody's library grades, in a lane; a made-up grader stands for the libraries."""

import json
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from examples.graders.gym_generators import GENERATORS
from score.isolation.lockdown import RESULT_FD, Layer
from score.protocol import plain_data
from score.protocol.frames import encode_result
from score.rewards.scorer import Scorer
from score.sandbox.executor import Executor
from score.sandbox.lane_handle import LaneConfig
from score.sandbox.limits import Limits
from score.sandbox.pool import LanePool
from score.tasks import graded
from score.tasks.graded import MATH, GradedKind, boxed_or_end
from score.tasks.kinds import graders_of, load_task
from score.tasks.measures import Answer, Measures
from warehouse.sources.named import parse_source, read_source
from warehouse.store.errors import StageError
from warehouse.tasks import graders

# Says how much of the text is the letter asked for; what it should never do hides behind other letters.
LETTERS = """
import os
def grade(text, payload):
    letter = payload["letter"]
    if letter == "raise": raise ValueError("what is this?")
    if letter == "twice": return 2.0
    if letter == "text": return "all of it"
    if letter == "write": open("/tmp/written-by-a-grader", "w")
    return {"share": text.count(letter) / len(text), "shown": text}
"""

# What, evaluated where it is judged, puts a verdict where the grader's would be.
FORGED = encode_result(json.dumps([["value", plain_data.tag({"share": 1, "shown": "forged"})]]).encode())
FORGERY = f"[o := __import__('os'), o.pwrite({RESULT_FD}, {FORGED!r}, 0), o._exit(0)]"
GYM = LaneConfig(Layer.SECCOMP, preload=("gym_grader",), import_paths=("examples/graders",))
QUESTIONS = "examples/sources/reasoning_gym.py:tasks"


def judged(executor: Executor, kind: GradedKind, *answers: tuple[dict[str, Any], str]) -> list[Measures]:
    """The measures of each text under its payload."""
    tasks = [(kind.load(payload), Answer(text, None)) for payload, text in answers]
    plans = [kind.programs(*task) for task in tasks]
    assert all(isinstance(plan, list) for plan in plans)
    outcomes = executor.run([program for plan in plans if isinstance(plan, list) for program in plan])
    return [kind.measure(*task, [outcome]) for task, outcome in zip(tasks, outcomes, strict=True)]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Measures]]]:
    folder = tmp_path_factory.mktemp("graders")
    (folder / "letter_grader.py").write_text(LETTERS)
    folder.chmod(0o755)
    kind = GradedKind("letter_grader")
    config = LaneConfig(Layer.SECCOMP, preload=("letter_grader",), import_paths=(str(folder),))
    with LanePool(config, Limits(cpu_seconds=0.5), 1) as pool:
        yield lambda *answers: judged(Executor(pool), kind, *answers)


def test_the_share_that_a_grader_gives_is_what_is_right(letters: Callable[..., list[Measures]]) -> None:
    half, whole, none = letters(({"letter": "a"}, "abab"), ({"letter": "a"}, "aa"), ({"letter": "a"}, "b"))
    assert (half.correct_share, half.correct, whole.correct_share, whole.correct) == (0.5, False, 1.0, True)
    assert (none.correct_share, none.outputs) == (0.0, '{"test":["b"]}')
    assert half.fingerprint != whole.fingerprint


def test_what_is_shown_of_a_long_answer_costs_no_reward(letters: Callable[..., list[Measures]]) -> None:
    [row] = letters(({"letter": "a"}, "a" * 10**5))
    assert row.correct and json.loads(row.outputs or "")["test"] == ["a" * graded.LONGEST_TEXT]


@pytest.mark.parametrize("letter", ["raise", "twice", "text", "write"])
def test_a_grader_that_fails_or_says_nonsense_gives_nothing(letters: Callable[..., list[Measures]],
                                                            letter: str) -> None:
    [row] = letters(({"letter": letter}, "xyz"))
    assert row.correct_share == 0.0 and not Path("/tmp/written-by-a-grader").exists()


def test_an_empty_answer_is_never_graded() -> None:
    outcome = MATH.programs(MATH.load({"answer": "1"}), Answer("  \n", None))
    assert not isinstance(outcome, list) and outcome.error_class == "parsing"


def test_what_a_grader_sees_is_the_last_box_or_the_end_of_the_text() -> None:
    inner = r"\boxed{\frac{1}{\sqrt{2}}}"
    assert boxed_or_end(rf"\boxed{{1}}, no: {inner}, I think") == inner
    assert boxed_or_end(r"\boxed{4.}") == r"\boxed{4}"
    assert boxed_or_end("word " * 2000) == ("word " * 2000)[-graded.LONGEST_TEXT:]


def test_the_library_of_a_grader_is_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders, "version", lambda package: "1.2")
    found = graders_of([("grid", "{"), ("math", "{"), ("math", "{")])
    assert found.versions == {"math-verify": "1.2"} and found.modules == ("score.graders.symbolic",)
    assert Scorer("exact", graders=found.versions).identity != Scorer("exact").identity
    none = graders_of([("grid", "{")]).versions
    assert Scorer("exact", graders=none).identity == Scorer("exact").identity


def test_a_library_that_is_missing_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)
    monkeypatch.setattr(graders, "version", missing)
    with pytest.raises(StageError, match=r"graded by math-verify, .* Run pip install 'rollhouse\[math"):
        graders_of([("math", "{}")])


# math-verify itself -----------------------------------------------------------------------------------------

WORDINGS = (r"\boxed{{{}}}", r"so \(x > 7\), hence $\boxed{{{}}}$.", "Therefore the answer is ${}$.",
            r"\boxed{{9999}} is wrong; $$\boxed{{ {} }}$$", r"**Final answer**: $\boxed{{\displaystyle {}}}$")
EQUAL = ((r"\frac{3}{4}", ("0.75", r"\dfrac34", r"\frac{6}{8}", r"\tfrac{3}{4}")),
         (r"2\sqrt{3}", (r"\sqrt{12}", r"2 \cdot \sqrt 3", r"\frac{6}{\sqrt{3}}")),
         (r"x^2+2x+1", (r"(x+1)^2", r"1 + 2x + x^2")), ("17", ("17", "17.0", r"17\,", "+17")),
         (r"\left( 3, \frac{\pi}{2} \right)", (r"(3, \pi/2)", r"(3,\frac{\pi}{2})")))
GARBAGE = ("foo bar", "I do not know.", r"\boxed{}x", r"\boxed{\text{anything}}", r"\frac{1}{0}", "9" * 3000,
           r"\boxed{" * 300, r"$\sqrt[", "1, 2, 3 or 4", "__import__('os').system('id')")


@pytest.fixture(scope="module")
def mathematics() -> Iterator[Callable[..., list[Measures]]]:
    try:
        version("math-verify")
    except PackageNotFoundError:
        pytest.skip("math-verify is not installed")
    config = LaneConfig(Layer.SECCOMP, preload=(str(MATH.module),))
    with LanePool(config, Limits(cpu_seconds=2), 1) as pool:
        yield lambda *answers: judged(Executor(pool), MATH, *answers)


def test_a_right_expression_is_right_in_any_wording(mathematics: Callable[..., list[Measures]]) -> None:
    answers = [({"answer": answer}, wording.format(spelled)) for answer, spellings in EQUAL
               for spelled, wording in product((answer, *spellings), WORDINGS)]
    wrong = [text for (_, text), row in zip(answers, mathematics(*answers), strict=True) if not row.correct]
    assert wrong == []


def test_garbage_and_other_expressions_are_wrong(mathematics: Callable[..., list[Measures]]) -> None:
    others = [wording.format(other) for other, wording in product((r"\frac{4}{3}", "75", "-0.75"), WORDINGS)]
    answers = [({"answer": r"\frac{3}{4}"}, text) for text in (*GARBAGE, *others)]
    right = [text for (_, text), row in zip(answers, mathematics(*answers), strict=True) if row.correct]
    assert right == []


# The question's own formula, which leaves everything to compute, and other forms of an answer.
FORMULAS = (("9901", r"99^2+99+1"), ("9901", "x=99^2+99+1"), ("9901", r"\{99^2+99+1\}"),
            ("5050", r"5000\,+50"), ("5050", "5000\u2212(-50)"), ("5050", r"\sum_{k=1}^{100} k"),
            ("24", r"\prod_{k=1}^{4} k"), (r"\frac13", r"\int_0^1 x^2 dx"), ("3", r"\log_2 8"),
            ("4495", r"\dbinom{31}{28}"), ("40_9", "58_9 - 18_9"), ("391", r"17 \cdot 23"),
            ("3", r"\operatorname{gcd}(6,9)"),
            ("6+9i", "(1+2i)6-3i"), ("2k+2", "(-k + 4) + (-2 + 3k)"),
            (r"-\frac{\pi}{6}", r"\arcsin(-\frac12)"), (".0000672", r"\frac{21}{2^2 \cdot 5^7}"),
            ("x=9901", "99^2+99+1=x"), ("25", r"\lceil{\sqrt{20}}\rceil^2"),
            ("22", "17 5"), ("22", "17(5)"), ("-22", "-17 5"), ("306", "17\u22c518"),
            ("306", r"[17]\times18"),
            ("17", "306:18"), ("2", r"17 \mod 5"), ("120", r"\Gamma(6)"), ("3", r"\operatorname{floor}(3.7)"),
            ("-2", r"\begin{vmatrix}1&2\\3&4\end{vmatrix}"), ("90^\\circ", "180/2"), (r"36\%", r"4\cdot9\%"),
            ("x=36", r"x=4\cdot9"), ("5,-1", r"\frac{10}{2},-1"), ("(3,6)", r"(3\cdot1,3\cdot2)"),
            (r"\begin{pmatrix} 17 \\ 39 \end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"
             r"\begin{pmatrix}5\\6\end{pmatrix}"), (r"\frac14", r"(\frac12)(\frac12)"), ("0", "a+b+c+d=0"),
            (r"\begin{pmatrix}\frac12\\\frac14\end{pmatrix}",
             r"\begin{pmatrix}\frac14\\0\end{pmatrix}+\begin{pmatrix}\frac14\\\frac14\end{pmatrix}"),
            (r"x \ge 9901", "99^2+99+1 <= x"), ("1", r"\omega^3 = 1"), ("0", "a b c d = 0"),
            ("12", r"\frac{x}{2}=12"), ("100000", r"10^{3}\times10^2"),
            (r"1.6\times10^{-19}", r"3\times10^{-20}"), ("0.0000123", "0.000012"), ("0.0000004", "0.0"),
            # A number that is near 0, values in another order, and another base.
            ("10^{-10}", "0.0"), ("e^{-20}", "0.0"), ("x=1,y=2", "(2,1)"), ("x=2,y=1", "1,2"),
            ("x=2,y=1", "(x,y)=(1,2)"), ("(2,1)", "y=2,x=1"), ("11_2", "11_3"))
FORMS = (("0.15", r"\frac{3}{20}"), ("20", r"5 \cdot 4 = 20"), ("1000000", "10^6"),
         ("5050", r"5.05\times10^3"), ("10000", r"10\,000"), ("42", r"42\text{ cm}^2"),
         (r"\frac{1+\sqrt5}{2}", r"\frac12+\frac{\sqrt5}{2}"), (r"3\pm\sqrt5", r"3+\sqrt5, 3-\sqrt5"),
         ("(0.5,0.25)", r"(\frac12,\frac14)"), ("5xy", "5*x*y"), ("x^2-1", "(x-1)(x+1)"),
         ("60", r"60^\circ"), ("x^{-1}", r"\frac1x"), (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
         (r"\cot x", r"\cot(x)"), (r"x \ln x - x", r"x\ln(x)-x"), ("58,500", "x = 58,500"),
         ("90", "90\u00b0"),
         (r"10,\!080", "x=10{,}080"), (r"137 \frac{1}{2}", "137 1/2"), ("90", r"90\degree"),
         (r"\frac13", "0.333333"), ("x=2,y=1", "(2,1)"), ("(2,1)", r"y=1\text{ and }x=2"), ("1010_2", "1010"),
         ("-3,5", r"x=-3\text{ or }x=5"), ("(3,5)", "(x,y)=(3,5)"), (r"x\ge5", r"[5,\infty)"),
         ("5,-5", r"\pm5"),
         ("22", r"A = \frac{1}{2}bh = 22"), ("60", r"\angle ABC = 60^\circ"), ("2000000", r"2\cdot10^{6}"),
         (r"\begin{pmatrix} 4 \\ 6 \end{pmatrix}", r"\mathbf{v}=\begin{bmatrix} 4 \\ 6 \end{bmatrix}"),
         (r"-2\le x\le7", r"x\in[-2,7]"), ("2x+3", r"\frac{dy}{dx}=2x+3"), ("22", r"\mathbf{22}"),
         ("3", r"\gcd(6,9)=3"))


def test_an_answer_may_have_another_form_but_leaves_nothing_to_compute(
        mathematics: Callable[..., list[Measures]]) -> None:
    pairs = [*FORMULAS, *FORMS]
    rows = mathematics(*(({"answer": answer}, rf"\boxed{{{text}}}") for answer, text in pairs))
    assert [pair for pair, row in zip(pairs, rows, strict=True) if row.correct] == list(FORMS)
    unboxed = mathematics(*(({"answer": "1024"}, text) for text in ("2**10", "The answer is 2**10.",
    "It is **1024**")))
    assert [row.correct for row in unboxed] == [False, False, True]


def test_products_are_compared_in_a_locked_process(mathematics: Callable[..., list[Measures]]) -> None:
    [row] = mathematics(({"answer": r"\prod_{k=1}^{n} k"}, r"\boxed{\prod_{j=1}^{n} j}"))
    assert row.correct


def test_math_payloads_are_checked() -> None:
    with pytest.raises(StageError, match="payload field 'answer' is empty"):
        load_task("t", "math", {"answer": ""})


# reasoning-gym itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["countdown", "spiral_matrix", "composite", "sudoku", "mini_sudoku"])
def test_generators_that_pay_for_forgery_or_for_the_clues_are_refused(name: str) -> None:
    with pytest.raises(StageError, match=f"'{name}' is not among the generators"):
        read_source(parse_source(f"{QUESTIONS}?name={name}&count=5", heldout=False))


@pytest.mark.parametrize(("name", "constant"), [("complex_arithmetic", "nan"), ("coin_flip", "0")])
def test_a_generator_that_pays_constants_is_refused(name: str, constant: str) -> None:
    try:
        version("reasoning-gym")
    except PackageNotFoundError:
        pytest.skip("reasoning-gym is not installed")
    from reasoning_gym import create_dataset

    from examples.sources import reasoning_gym
    dataset = create_dataset(name, size=5, seed=77)
    assert name not in GENERATORS
    with pytest.raises(StageError, match="the library gives its own answer 1 and wrong ones up to 1"):
        for number in range(5):
            reasoning_gym._task_of(name, dataset, number, 77)


def test_no_grader_of_a_generator_that_is_allowed_evaluates_the_answer() -> None:
    try:
        version("reasoning-gym")
    except PackageNotFoundError:
        pytest.skip("reasoning-gym is not installed")
    from reasoning_gym import create_dataset
    payloads = [{"grader": "gym_grader", "dataset": name,
                 "entry": json.loads(json.dumps(create_dataset(name, size=1, seed=3)[0]))}
                for name in GENERATORS]
    wordings = (FORGERY, f"({FORGERY}) == 1", f"x = {FORGERY}", f"{{{FORGERY}[0]: 1}}")
    answers = [(payload, f"<answer>{text}</answer>") for payload in payloads for text in wordings]
    with LanePool(GYM, Limits(), 1) as pool:
        rows = judged(Executor(pool), GradedKind(), *answers)
    believed = {payload["dataset"] for (payload, _), row in zip(answers, rows, strict=True)
                if row.correct_share > 0.05 or "forged" in json.loads(row.outputs or "{}").get("test", [])}
    assert not believed


def test_questions_are_drawn_once_and_graded_by_the_library() -> None:
    try:
        version("reasoning-gym")
    except PackageNotFoundError:
        pytest.skip("reasoning-gym is not installed")
    names = ("zebra_puzzles&count=3&seed=7&num_people=3", "lcm&count=3&seed=1", "count_bits&count=2",
             "word_sorting&count=3&seed=5")
    sources = [parse_source(f"{QUESTIONS}?name={name}", heldout=False) for name in names]
    tasks = [task for source in sources for task in read_source(source)]
    assert tasks[:3] == read_source(sources[0])
    payloads = [json.loads(task.payload) for task in tasks]
    wordings = ("{}", "Let me think: 17.\n{}", "<answer>foo</answer> No. {} I am sure.", "**Answer**\n{}\n")
    answers = [(payload, wording.format(task.solution)) for task, payload in zip(tasks, payloads, strict=True)
               for wording in wordings]
    nonsense = ("foo bar", "__import__('os')", "?" * 5000)
    garbage = [(payload, text) for payload in payloads for text in nonsense]
    with LanePool(GYM, Limits(), 1) as pool:
        rows = judged(Executor(pool), GradedKind(), *answers, *garbage)
    assert [row.correct for row in rows[:len(answers)]] == [True] * len(answers)
    assert max(row.correct_share for row in rows[len(answers):]) <= 0.05

"""The site: who may ask, what every page shows, and what is said of a bad question or a run that changes."""

import json
import re
import shutil
import time
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import duckdb
import numpy as np
import pytest
from starlette.testclient import TestClient

import warehouse
from reports.build import FIGURES
from reports.viewer import session
from reports.viewer.distributions import bars_of
from reports.viewer.overview import line_of
from reports.viewer.render import environment
from reports.viewer.serve import named_sessions
from reports.viewer.session import LOOK_AGAIN, Asking
from tests.building.object_server import object_server
from tests.building.runs import (
    back_before,
    begin,
    completion_row,
    copy_run,
    finish,
    new_run,
    prompt_row,
    replace_rows,
    sample_row,
    write_rows,
)
from tests.building.weather import SCORER, Weather, build_run, write_iteration, write_training
from tests.reports.viewer.conftest import TOKEN, client_of
from warehouse.maintain.discard import discard
from warehouse.maintain.prune import prune_run
from warehouse.maintain.rollback import roll_back
from warehouse.objects.mirror import mirror_run
from warehouse.sql.database import lock, rows_of
from warehouse.store.run_folder import Warehouse, open_warehouse

HOSTILE = "</pre><script>window.owned = 1</script>\u202e<img src=x onerror='window.owned = 2'>\x1b[2J"


def replace_completions(run: Warehouse, text: str) -> None:
    """The first rollout with another text everywhere."""
    replace_rows(run, "completions", lambda row: {**row, "completion": text}, iteration=0, purpose="train")


def notice(client: TestClient, address: str) -> str:
    """The sentence of a page that says what is wrong."""
    text = client.get(address).text
    found = re.search(r'class="notice"[^>]*><p>(.*?)</p>', text, re.DOTALL)
    assert found, text[:300]
    return found[1]


def test_nobody_gets_in_without_the_token(client: TestClient) -> None:
    for cookies in ({}, {"rollhouse-8000": "another"}, {"rollhouse-8001": TOKEN}):
        stranger = TestClient(client.app, base_url="http://127.0.0.1:8000", cookies=cookies)
        assert stranger.get("/").status_code == 403
        assert stranger.get("/static/style.css").status_code == 403
    assert TestClient(client.app, base_url="http://127.0.0.1:8000").get("/?token=wrong").status_code == 403


def test_the_token_goes_from_the_address_into_a_cookie_that_scripts_cannot_read(client: TestClient) -> None:
    visitor = TestClient(client.app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    answer = visitor.get(f"/blow-up/find?where=correct&token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/blow-up/find?where=correct")
    assert "httponly" in answer.headers["set-cookie"].lower() and "samesite=strict" in answer.headers[
        "set-cookie"].lower()


def test_an_iteration_says_how_many_of_its_tasks_are_others(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=2, evals=(), num_tasks=4, group_size=4)
    assert "are not those of" not in client_of(run.root).get("/run/iteration?iteration=1").text
    random, tasks = np.random.default_rng(0), 2
    write_iteration(run, 2, "train", Weather(), random, tasks, 4)
    write_iteration(run, 3, "train", Weather(), random, 2 * tasks, 4)
    page = client_of(run.root).get("/run/iteration?iteration=3").text
    assert "2 of 4 tasks are not those of iteration 2." in page


def test_an_iteration_after_a_rollback_is_compared_with_those_that_led_to_its_policy(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=4, evals=(), num_tasks=4, group_size=4)
    roll_back(run, 1, "for the test")
    write_iteration(run, 4, "train", Weather(), np.random.default_rng(0), num_tasks=4, group_size=4)
    client = client_of(run.root)
    for number, before in ((4, 1), (3, 2)):
        text = client.get(f"/run/iteration?iteration={number}").text
        assert f"What changed since iteration {before}<" in text
        visited = re.findall(r'<td class="left"><a href="[^"]*">task-\d+</a>.*?</tr>', text, re.DOTALL)
        assert len(visited) == 4 and all(f">{before}<" in row for row in visited)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""])
def test_another_name_for_this_machine_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == 421


def test_nothing_is_written_and_no_script_but_ours_may_run(client: TestClient) -> None:
    assert client.post("/").status_code == 405
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy


@pytest.mark.parametrize("page", [
    "", "tasks", "settings", "history", "gaps", "find", "iteration?iteration=7", "task?task=task-003",
    "iteration?iteration=7&purpose=eval", "group?iteration=7&group=7/train/task-003/0",
    "completion?name=3/task-003/4", "completion?name=7/eval/task-003/4"])
def test_every_page_has_its_sql_and_an_address_to_send(client: TestClient, page: str) -> None:
    answer = client.get(f"/blow-up/{page}")
    assert answer.status_code == 200, answer.text[-500:]
    assert "--at" in answer.text and "<script>" not in answer.text and "style=" not in answer.text
    assert not page or "SQL of this page" in answer.text


def test_the_sql_of_a_page_can_be_pasted(client: TestClient, run: Warehouse) -> None:
    text = client.get("/blow-up/completion?name=3/task-003/4").text
    asked = re.findall(r"<pre tabindex=\"0\">(.*?)</pre>", text.partition("SQL of this page")[2], re.DOTALL)
    connection = warehouse.open(run.root)
    assert len(asked) >= 6
    assert all(connection.execute(unescape(query)).description for query in asked)


@pytest.mark.parametrize("where", [
    "true); DROP VIEW samples; --", "(SELECT count(*) FROM read_text('/etc/passwd')) > 0",
    "EXISTS (FROM glob('/etc/*'))", "nonsense", "reward >", "true; SET threads = 1", "\x00"])
def test_a_condition_that_writes_or_reads_elsewhere_is_a_sentence(client: TestClient, where: str) -> None:
    assert notice(client, "/blow-up/find?" + urlencode({"where": where}))
    assert client.get("/blow-up/rows", params={"where": where}).status_code == 400
    assert client.get("/blow-up/rows?where=correct").json()["rows"]


def test_a_condition_that_never_ends_is_cancelled(client: TestClient,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_SECONDS", 0.3)
    endless = "(SELECT count(*) FROM range(1000000000) AS a, range(1000000)) > 0"
    assert "was cancelled" in notice(client, "/blow-up/find?" + urlencode({"where": endless}))


def test_the_connection_reads_the_run_alone_and_keeps_its_settings(run: Warehouse, tmp_path: Path) -> None:
    connection = warehouse.open(run.root)
    lock(connection, run.root, memory_mib=256)
    (tmp_path / "other.csv").write_text("a\n1\n")
    for query in (f"FROM read_csv('{tmp_path}/other.csv')", f"ATTACH '{tmp_path}/new.db'", "SET threads = 1",
                  f"COPY (SELECT 1) TO '{tmp_path}/out.csv'", "SET enable_external_access = true"):
        with pytest.raises(duckdb.Error):
            connection.execute(query)
    assert connection.execute("SELECT count(*) FROM samples").fetchall()[0][0] > 0


@pytest.mark.parametrize(("address", "said"), [
    ("completion?name=3/nobody/4", "no completion 3/nobody/4"), ("completion?name=what", "does not name"),
    ("task?task=nobody", "no task"), ("group?iteration=1&group=none", "no group none"),
    ("iteration?iteration=99", "not scored"), ("iteration?iteration=x", "not a whole number"),
    ("iteration", "not a whole number"), ("task", "lacks"), ("gaps?iteration=99", "No old logprobs"),
    ("figure?figure=none", "no figure"),
    ("rows?offset=-1", "not a whole number")])
def test_a_bad_address_is_answered_with_a_sentence(client: TestClient, address: str, said: str) -> None:
    answer = client.get(f"/blow-up/{address}")
    assert answer.status_code == 400 and said in answer.text


def test_a_search_streams_what_holds_the_text_and_the_condition(client: TestClient) -> None:
    lines = [json.loads(line) for line in client.get(
        "/blow-up/search", params={"text": "fliplr", "where": "correct"}).text.splitlines()]
    hits = [line for line in lines if "cells" in line]
    assert hits and all(hit["cells"][2] == "right" and "fliplr" in hit["around"] for hit in hits)
    assert lines[-1]["looked"] == lines[-1]["of"] == 10


def test_bars_and_figures_lead_to_what_they_are_made_of(client: TestClient) -> None:
    text = client.get("/blow-up/iteration?iteration=7").text
    bars = [unescape(link) for link in re.findall(r'<a href="(iter[^"]*)" aria-label="[^"]*: \d', text)]
    assert len(bars) > 10
    counts = [int(number) for number in re.findall(r'aria-label="[^:"]*: (\d+) completions', text)]
    for link, num in list(zip(bars, counts, strict=True))[::7]:
        total = re.search(r'data-total="(\d+)"', client.get(f"/blow-up/{link}").text)
        assert total and int(total[1]) == num, link
    for figure, x, row, series, page in (
            ("tasks", 3, "task-001", "", "task?task=task-001"), ("ratios", 5, "", "", "gaps?iteration=5"),
            ("passes", 7, "", "pass@1, eval", "iteration?iteration=7&purpose=eval"),
            ("errors", 6, "", "no_code", "no_code"), ("alarms", 5, "truncation", "", "truncated"),
            ("alarms", 5, "step_kl", "", "train_tokens"), ("alarms", 5, "mismatch", "", "gaps?iteration=5")):
        clicked = {"figure": figure, "x": x, "row": row, "series": series}
        answer = client.get("/blow-up/behind", params=clicked, follow_redirects=False)
        assert page in answer.headers["location"]
        assert client.get(f"/blow-up/{answer.headers['location']}").status_code == 200


@pytest.mark.parametrize(("values", "edges"), [
    ("0.1 * (range % 16) - 0.7 + 4 * (range // 90)", ("-1 to -0.5", "-0.5 to 0", "1 to 1.5", "4.5 to 4.8")),
    ("6 + range % 13 + 15 * (range // 90)", ("6 to 8", "8 to 10", "18 to 20", "32 to 33"))])
def test_bins_are_round_and_those_without_completions_are_drawn(values: str, edges: tuple[str, ...]) -> None:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE chosen AS SELECT {values} AS value, true AS correct FROM range(100)")
    bars = bars_of(Asking(connection), "value")
    names = [bar.name for bar in bars]
    assert set(edges) <= set(names) and sum(bar.num for bar in bars) == 100 and 0 in [bar.num for bar in bars]
    for bar in bars:
        assert connection.execute(f"SELECT count(*) FROM chosen WHERE {bar.where}").fetchone() == (bar.num,)


def test_every_figure_of_the_report_is_drawn(client: TestClient) -> None:
    for figure in FIGURES.values():
        told = client.get(f"/blow-up/figure?figure={figure.name}").json()
        assert "<svg" in told["html"] and told["facts"], figure.name


def test_a_hostile_completion_is_text_alone(run: Warehouse, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    replace_completions(copy, HOSTILE + "x" * 200_000)
    with client_of(copy.root) as client:
        for address in ("completion?name=0/task-003/4", "group?iteration=0&group=0/train/task-003/0",
                        "task?task=task-003", "find?text=owned"):
            text = client.get(f"/copy/{address}").text
            assert "<script>window" not in text and "<img" not in text and "\u202e" not in text
            assert len(text) < 1_000_000
        whole = client.get("/copy/text?name=0/task-003/4")
        assert whole.headers["content-type"].startswith("text/plain") and HOSTILE[:20] in whole.text
        assert "attachment" in whole.headers["content-disposition"]


def test_ten_megabytes_and_a_million_tokens_are_shown_by_stretches(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "fixtures" / "run-0.2.0", tmp_path / "run")
    run, many = open_warehouse(tmp_path / "run"), 1_000_000
    [row, *_] = run.read("completions", ["task_id", "sample_index"], iteration=0, purpose="train").to_pylist()
    replace_rows(run, "completions", lambda each: each if {**each, **row} != each else {
        **each, "completion": HOSTILE + "x" * 10_000_000, "num_completion_tokens": many,
        **{name: (each[name] * many)[:many] for name in ("completion_ids", "behaviour_logprobs")}},
        iteration=0, purpose="train")
    name = f"0/{row['task_id']}/{row['sample_index']}"
    with client_of(run.root) as client:
        for address in (f"completion?name={name}", f"completion?name={name}&first=900000"):
            answer = client.get(f"/run/{address}")
            assert answer.status_code == 200 and len(answer.content) < 1_000_000
            assert "<script>window" not in answer.text


def test_a_run_that_grows_and_vanishes_while_it_is_shown(run: Warehouse, tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reports.viewer.session.LOOK_AGAIN", 0)
    copy = back_before(copy_run(run, tmp_path / "copy"), "score", complete=True, iteration=7, purpose="train",
                       scorer=SCORER)
    with client_of(copy.root) as client:
        before = client.get("/copy/now").json()["version"]
        assert client.get("/copy/iteration?iteration=7").status_code == 400
        finish(copy, "score", iteration=7, purpose="train", scorer=SCORER)
        grown = client.get("/copy/now").json()["version"]
        assert grown != before and client.get("/copy/iteration?iteration=7").status_code == 200
        discard(copy, 7, "train")
        assert client.get("/copy/now").json()["version"] != grown
        assert client.get("/copy/iteration?iteration=7").status_code == 400
        shutil.rmtree(copy.root)
        assert "is gone" in notice(client, "/copy/iteration?iteration=7")


def test_a_stage_under_way_is_told_with_its_share(run: Warehouse, tmp_path: Path) -> None:
    keys = {"iteration": 7, "purpose": "train"}
    copy = back_before(copy_run(run, tmp_path / "copy"), "rollout", complete=True, **keys)
    copy.parts("completions", **keys)[0].unlink()
    begin(copy, "train", iteration=7)
    with client_of(copy.root) as client:
        told = client.get("/copy/now").json()["html"]
    assert "rollout of iteration 7" in told and "64 of 128 completions" in told and 'value="50"' in told
    assert "tokens/s since it began" in told and "train of iteration 7" in told


def test_an_older_run_is_shown(tmp_path: Path) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "run-0.2.0"
    shutil.copytree(fixture, tmp_path / "old")
    with client_of(tmp_path / "old") as client:
        for page in ("", "story", "iteration?iteration=0", "tasks", "gaps", "history", "settings"):
            assert client.get(f"/old/{page}").status_code == 200, page
        row = client.get("/old/rows?where=true").json()["rows"][0]
        assert client.get(f"/old/{row['href']}").status_code == 200


def test_a_verdict_is_worded_as_score_explain_words_it(tmp_path: Path) -> None:
    add = {"entry_point": "add", "tests": ["got = add(1)\nassert got == 2"]}
    run = new_run(tmp_path / "run", {
        "f": ("function", add), "s": ("stdio", {"cases": [{"input": "2\n", "output": "4\n"}]}),
        "g": ("graded", {"grader": "json"})})
    outputs = {"f": [[False, "AssertionError", "line 2, 3", "assertion"]], "s": [""], "g": ["42"]}
    prompts = [prompt_row(task, 2, prompt_format="messages@1") for task in outputs]
    rows = [completion_row(prompt, index, [1, 2], [-0.5, -0.5], "text")
            for prompt in prompts for index in (0, 1)]
    scores = [sample_row(row, "one", 0.25 * row["sample_index"], correct=False, code="text",
                         test_correct_grids=0.25 * row["sample_index"],
                         outputs=json.dumps({"test": outputs[row["task_id"]]})) for row in rows]
    keys = {"iteration": 0, "purpose": "train"}
    settings = {"prompt_format": "compact@1"}
    write_rows(run, "prompts", [prompts], settings=settings)
    write_rows(run, "completions", [rows])
    finish(run, "rollout", settings, **keys)
    write_rows(run, "samples", [scores], scorer="one", settings={"code": 9})
    finish(run, "score", {"code": 9}, **keys, scorer="one")
    with client_of(run.root) as client:
        texts = {task: unescape(client.get(f"/run/completion?name=0/{task}/1").text) for task in outputs}
        settings_text = client.get("/run/settings").text
        [figure] = [client.get("/run/figure?figure=groups").json()["facts"]["series"]]
    assert "  failed   assert got == 2\n  answered 3" in texts["f"]
    assert "case 1: wrong" in texts["s"] and '  got      ""' in texts["s"]
    assert 'got "42"' in texts["g"] and "The program that was run" not in texts["g"]
    assert all('<span class="tag">0.25 right</span>' in text for text in texts.values())
    assert "messages@1" in settings_text and "code_version" in settings_text
    assert "<td class=\"left\">compact@1" not in settings_text
    assert {each["name"]: each["values"] for each in figure} == {
        "all right": ["0"], "mixed rewards": ["1"], "all wrong": ["0"], "equal otherwise": ["0"]}


def test_the_verdict_of_every_scorer_is_shown(run: Warehouse, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    row = copy.read("samples", task_ids={"task-003"}, iteration=3, purpose="train",
                    scorer=SCORER).to_pylist()[0]
    other = {**row, "scorer": "second", "reward": 0.125, "error_class": "told apart"}
    write_rows(copy, "samples", [[other]], scorer="second", settings={"code": 9})
    finish(copy, "score", {"code": 9}, iteration=3, purpose="train", scorer="second")
    page = f"/copy/completion?name=3/task-003/{row['sample_index']}"
    with client_of(copy.root) as client:
        ours, other = (client.get(page + more).text for more in ("", "&scorer=second"))
        missing = notice(client, f"{page}&scorer=third")
    shown = {scorer: f"By scorer {scorer}; by " for scorer in (SCORER, "second")}
    counting, left = (SCORER, "second") if shown[SCORER] in ours else ("second", SCORER)
    assert shown[counting] in ours and f"scorer={left}" in ours
    assert shown["second"] in other and "reward 0.125" in other and "told apart" in other
    assert f"No scorer third judged it: choose one of {SCORER}, second." in missing


def test_the_use_of_a_dropped_completion_does_not_contradict_itself(run: Warehouse, tmp_path: Path) -> None:
    copy = copy_run(run, tmp_path / "copy")
    replace_rows(copy, "train_samples", lambda row: {
        **row, "drop_reason": "zero_variance" if row["sample_index"] == 4 else None}, iteration=3)
    with client_of(copy.root) as client:
        dropped, used = (client.get(f"/copy/completion?name=3/task-003/{index}").text for index in (4, 5))
    assert "Read by the training of" in dropped and ", not trained on: zero variance" in dropped
    assert "Trained on at" in used and "Trained on at" not in dropped
    assert "not trained on" not in used


def test_a_collapse_comes_first_and_held_out_tasks_are_listed(client: TestClient, run: Warehouse) -> None:
    [session] = named_sessions([str(run.root)])
    line = line_of(session.view())
    assert line.story.startswith("Collapsed at iteration 5") and "On 'eval'" in line.story
    assert re.fullmatch(r"[.\d]+ → [.\d]+ eval, [.\d]+ → [.\d]+ training", line.passes)
    page = client.get("/blow-up/tasks").text
    assert "Held-out tasks with the largest gains and losses" in page
    assert "<th>policy 0</th><th>policy 7</th>" in page
    [gains] = rows_of(session.view().connection, "FROM gains(0, 7, purposes := 'eval')")
    worse = min(10, gains["worse"])
    assert f"<p>{worse} of {gains['worse']} that got worse.</p>" in page, gains


def test_a_missing_value_is_a_dash_and_a_float_has_three_digits() -> None:
    page = '{% import "pieces.html" as pieces with context %}{{ pieces.facts([("part", 1 / 6)]) }}{{ gone }}'
    shown = environment().from_string(page).render(gone=None)
    assert "<dd>0.167</dd>" in shown and shown.endswith("\u2013")


def test_the_links_of_a_run_stand_among_its_questions(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", iterations=1, evals=(), num_tasks=2, group_size=2).root
    (run / "config.toml").write_text('[links]\n"paid for nothing" = "find?where=NOT+correct"\n')
    with client_of(run) as client:
        assert "paid for nothing" in client.get("/run/find").text


def test_several_runs_are_told_apart_and_compared(run: Warehouse, tmp_path: Path) -> None:
    other = build_run(tmp_path / "blow-up", iterations=3)
    with client_of(run.root, other.root) as client:
        for name in ("blow-up", "blow-up-2"):
            assert client.get(f"/{name}/tasks").status_code == 200
        assert "common tasks" in client.get("/compare?run=blow-up&run=blow-up-2").text
        assert "needs at least two runs" in notice(client, "/compare?run=blow-up")


def test_the_list_of_runs_shows_what_each_has_now(tmp_path: Path) -> None:
    grows = build_run(tmp_path / "grows", iterations=2)
    with client_of(grows.root) as client:
        def shown(said: str) -> bool:
            until = time.monotonic() + 60
            while (text := client.get("/").text) and (said not in text or "data-waiting" in text):
                if time.monotonic() > until:
                    return False
            return True
        assert shown("2 iterations")
        write_iteration(grows, 2, "train", Weather(), np.random.default_rng(0))
        time.sleep(2 * LOOK_AGAIN)
        assert shown("3 iterations")
        assert client.get("/grows/tasks").status_code == 200
        assert shown("3 iterations")


def test_tokens_of_the_largest_gap_come_first_of_those_that_are_left(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", shape="wrong-adapter", iterations=5, evals=(), num_tasks=2,
                    group_size=4)
    for iteration, sky in ((5, Weather(log_ratio=1.2)), (6, Weather())):
        write_training(run, iteration, sky, np.random.default_rng(0), write_iteration(
            run, iteration, "train", sky, np.random.default_rng(0), num_tasks=2, group_size=4))
    assert "Engine against trainer, iteration 5<" in client_of(run.root).get("/run/gaps").text
    prune_run(run, 6, dry_run=False)
    assert "Engine against trainer, iteration 6<" in client_of(run.root).get("/run/gaps").text


def test_the_history_shows_every_entry_of_the_log(run: Warehouse, tmp_path: Path) -> None:
    other = copy_run(run, tmp_path / "changed")
    discard(other, 7, "eval")
    with client_of(other.root) as client:
        text = client.get("/changed/history").text
    assert text.count("<tr><td>") == len(open_warehouse(other.root).state.entries)
    assert "discarded: " in text


def test_a_run_that_is_pruned_while_it_is_shown_shows_what_is_left(tmp_path: Path) -> None:
    shutil.copytree(Path(__file__).parents[2] / "fixtures" / "run-0.2.0", tmp_path / "run")
    with client_of(tmp_path / "run") as client:
        href = client.get("/run/rows?where=iteration=0").json()["rows"][0]["href"]
        assert 'id="tokens"' in client.get(f"/run/{href}").text
        prune_run(open_warehouse(tmp_path / "run"), 1, dry_run=False)
        time.sleep(2 * LOOK_AGAIN)
        assert "were pruned" in client.get(f"/run/{href}").text
        for page in ("", "story", "iteration?iteration=0", "tasks", "history", "find"):
            assert client.get(f"/run/{page}").status_code == 200, page


@pytest.mark.slow("starts an object store")
def test_a_run_in_a_bucket_is_shown(run: Warehouse, tmp_path: Path,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLHOUSE_CACHE", str(tmp_path))
    with object_server():
        mirror_run(str(run.root), "s3://runs/shown")
        with client_of("s3://runs/shown") as client:
            for page in ("", "story", "iteration?iteration=3", "completion?name=3/task-003/4"):
                assert client.get(f"/shown/{page}").status_code == 200, page

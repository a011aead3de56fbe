"""A branch answers like a run that never went on; nothing done to it or to its parent reaches the other."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import warehouse as rollhouse
from tests.building.runs import add_policy, begin, copy_run, new_run, small_run
from tests.building.sampled import run_train, sample_rows, tiny_run
from tests.building.sound import check_run
from tests.building.stored import weights
from tests.building.texts import SAME, add_rollout, fenced
from warehouse.cli import cli
from warehouse.experiments.branch import make_branch
from warehouse.ledger.refusals import Refusal
from warehouse.ledger.state import RunState
from warehouse.maintain.rollback import roll_back
from warehouse.stages.base_model import check_base
from warehouse.store.errors import StageError
from warehouse.store.run_folder import Warehouse, open_warehouse

FIXTURE = Path(__file__).parents[2] / "fixtures" / "run-0.2.0"


def command(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def files(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Content, time and mode of every file of a run; not what is derived and made anew at any time."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_file() and not name.startswith("iterations/") and name != "warehouse.sql":
            found[name] = path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A run of two trained iterations and a third that is scored."""
    run = tiny_run(tmp_path_factory.mktemp("trained") / "run")
    for iteration in range(3):
        sample_rows(run, iteration)
        if iteration < 2:
            assert run_train(run, "--iteration", str(iteration)).exit_code == 0
    return run


@pytest.fixture
def run(trained: Warehouse, tmp_path: Path) -> Warehouse:
    return copy_run(trained, tmp_path / "run")


def test_rows_are_trained_again_with_other_options_and_the_parent_stays(run: Warehouse) -> None:
    again = run_train(run, "--iteration", "1", "--learning-rate", "3e-3")
    assert again.exit_code == 1
    words = again.output.split("`")[1].split()          # the command to paste
    assert words[:2] == ["warehouse", "branch"]
    run_train(run, "--iteration", "2")                  # the parent goes on: policy 3
    before = files(run.root)
    assert command(*words[1:]).exit_code == 0
    branch = open_warehouse(words[3])
    state = branch.state
    assert (state.newest, state.train_due(), state.rollout_due()) == (1, 1, 1)
    assert branch.run_id != run.run_id and check_run(branch).problems == []
    assert [life.title for life in state.of_stage("rollout")] == [
        "rollout of iteration 0, purpose train", "rollout of iteration 1, purpose train"]
    assert run_train(branch, "--iteration", "1", "--learning-rate", "3e-3").exit_code == 0
    assert branch.policy(2)["sha256"] != run.policy(2)["sha256"]
    assert branch.policy(1) == run.policy(1)
    sample_rows(branch, 2)
    assert run_train(branch, "--iteration", "2").exit_code == 0
    assert check_run(branch).problems == []
    assert files(run.root) == before


def test_rows_of_later_policies_are_as_stale_as_the_policy_that_both_runs_share(run: Warehouse,
                                                                                 tmp_path: Path) -> None:
    before = files(run.root)
    make_branch(run, tmp_path / "new", 0, rows=True, through=2)
    branch = open_warehouse(tmp_path / "new")
    for iteration in range(3):
        done = run_train(branch, "--iteration", str(iteration), "--learning-rate", "3e-3")
        assert done.exit_code == 0, done.output
    assert branch.policy(1)["sha256"] != run.policy(1)["sha256"]
    ages = rollhouse.open(branch.root).sql("SELECT trained_iteration, min(staleness), max(staleness) "
                                           "FROM train_samples GROUP BY ALL ORDER BY ALL").fetchall()
    assert ages == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert check_run(branch).problems == [] and files(run.root) == before


def test_pruned_rows_are_not_trained_again(run: Warehouse, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("prune", run.root, "--before", 1, "--yes").exit_code == 0
    said = "The tokens of iteration 0 were pruned; it cannot be trained on again. "
    refused = command("branch", run.root, tmp_path / "new", "--at", 0, "--with-rows")
    assert refused.exit_code == 1 and said + "Name later ones" in refused.output
    monkeypatch.setattr(RunState, "is_pruned", lambda _state, _iteration: False)   # as an older version
    make_branch(run, tmp_path / "new", 0, rows=True)
    refused = run_train(open_warehouse(tmp_path / "new"), "--iteration", "0")
    assert refused.exit_code == 1 and said + "A branch" in refused.output
    monkeypatch.undo()
    assert "--with-rows" not in "".join(roll_back(run, 0))


def test_nothing_done_to_a_branch_reaches_its_parent(run: Warehouse, tmp_path: Path) -> None:
    before, new = files(run.root), tmp_path / "new"
    assert command("branch", run.root, new, "--at", 2, "--with-rows").exit_code == 0
    with (new / "config.toml").open("a") as config:
        config.write("[train]\nseed = 5\n")
    branch = open_warehouse(new)
    assert run_train(branch, "--iteration", "2", "--keep-policies", "2").exit_code == 0
    assert branch.state.policies[1].dropped and not run.state.policies[1].dropped
    damaged = branch.parts("samples", iteration=2, purpose="train", scorer="toy-1")[0]
    damaged.unlink()
    damaged.write_bytes(b"damaged")
    for words in (("check", "--fix"), ("compact",), ("prune", "--before", "2", "--yes"),
                  ("rollback", "--to", "2"), ("discard", "--iteration", "3", "--purpose", "train"),
                  ("prune", "--ended", "--yes"), ("sql", "SELECT count(*) FROM samples"), ("summary",),
                  ("log",)):
        name, *rest = words
        done = command(name, new, *rest)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.output)
    assert files(run.root) == before
    shutil.rmtree(new)
    assert files(run.root) == before and check_run(run).problems == []


def test_removing_the_parent_leaves_the_branch_whole(run: Warehouse, tmp_path: Path) -> None:
    make_branch(run, tmp_path / "new", 2, rows=True)
    model = run.root / run.facts["model"]
    assert model.is_dir()                                   # inside of the run, so it is shared, too
    shutil.rmtree(run.root)
    branch = open_warehouse(tmp_path / "new")
    assert check_run(branch).problems == []
    assert run_train(branch, "--iteration", "2").exit_code == 0


@pytest.mark.parametrize("lost", [
    lambda run: run.parts("completions", iteration=1, purpose="train")[0],
    lambda run: run.parts("prompts", iteration=0, purpose="train")[0],
    lambda run: run.parts("tasks")[0], lambda run: run.policy_dir(1) / "adapter_model.safetensors"])
def test_nothing_branches_from_a_run_that_lacks_a_file_of_it(run: Warehouse, tmp_path: Path,
                                                             lost: Callable[[Warehouse], Path]) -> None:
    path = lost(run)
    path.unlink()
    refused = command("branch", run.root, tmp_path / "new", "--at", 2)
    assert refused.exit_code == 1 and f"{path} is missing. Restore it from a copy" in refused.output
    assert [*tmp_path.iterdir()] == [run.root]


def test_a_damaged_manifest_is_named_where_it_lies(run: Warehouse, tmp_path: Path) -> None:
    path = run.folder("completions", iteration=1, purpose="train") / "manifest.json"
    path.chmod(0o644)
    path.write_text("{")
    refused = command("branch", run.root, tmp_path / "new", "--at", 2)
    assert refused.exit_code == 1 and f"{path} is damaged" in refused.output


def test_a_branch_takes_no_room_and_a_copy_shares_nothing(run: Warehouse, tmp_path: Path) -> None:
    make_branch(run, tmp_path / "linked", 2, rows=True)
    make_branch(run, tmp_path / "copied", 2, rows=True, copy=True)
    part = run.parts("completions", iteration=2, purpose="train")[0].relative_to(run.root)
    of = [os.stat(root / part) for root in (run.root, tmp_path / "linked", tmp_path / "copied")]
    assert of[0].st_ino == of[1].st_ino != of[2].st_ino and of[2].st_mode == of[0].st_mode
    assert check_run(open_warehouse(tmp_path / "copied")).problems == []


def test_the_log_tells_where_a_branch_of_a_branch_comes_from(run: Warehouse, tmp_path: Path) -> None:
    make_branch(run, tmp_path / "b", 2, rows=True)
    first = open_warehouse(tmp_path / "b")
    assert run_train(first, "--iteration", "2").exit_code == 0
    make_branch(first, tmp_path / "c", 3, rows=False)
    second = open_warehouse(tmp_path / "c")
    assert second.owners == (second.run_id, first.run_id, run.run_id) and second.state.newest == 3
    assert check_run(second).problems == []                 # parts of all three
    said = command("log", tmp_path / "c").output
    assert f"branched off {run.root} after its entry {run.state.head}, at policy 2 with rows" in said
    assert f"branched off {tmp_path / 'b'} after its entry {first.state.head}, at policy 3: " in said


def test_without_rows_the_branch_samples_its_first_iteration(run: Warehouse, tmp_path: Path) -> None:
    made = command("branch", run.root, tmp_path / "new", "--at", 1)
    assert f"next: rollout {tmp_path / 'new'} --iteration 1" in made.output
    connection = rollhouse.open(tmp_path / "new")
    assert connection.sql("SELECT DISTINCT iteration FROM completions").fetchall() == [(0,)]
    assert connection.sql("SELECT policy_version FROM policies ORDER BY ALL").fetchall() == [(0,), (1,)]


def test_what_is_under_way_or_of_later_policies_is_not_of_the_branch(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    for version in (1, 2):
        add_policy(run, version, weights(run, version, f"weights {version}"))
    rollouts = {"own": (1, "train", 1), "ahead": (2, "train", 1), "later": (3, "train", 2),
                "evaluated": (1, "eval", 1), "evaluated later": (2, "eval", 2)}
    for iteration, purpose, version in rollouts.values():
        add_rollout(run, [("t0", fenced(SAME))], iteration=iteration, purpose=purpose,
                    settings={"policy_version": version})
    begin(run, "score", iteration=1, purpose="train", scorer="under-way-1")
    begin(run, "rollout", {"policy_version": 1}, iteration=1, purpose="eval-other")

    def kept(rows: bool, at: int = 1) -> set[tuple[int, str]]:
        new = tmp_path / f"new-{rows}-{at}"
        make_branch(run, new, at, rows=rows)
        branch = open_warehouse(new)
        assert all(life.is_complete for life in branch.state.lives.values() if life.ended is None)
        return {(life.iteration, str(life.purpose)) for life in branch.state.of_stage("rollout")}

    assert kept(rows=True) == {(1, "train"), (2, "train"), (1, "eval")}
    assert kept(rows=False) == {(1, "eval")}                # of the policy that both have
    roll_back(run, 1)                                       # policy 3 is policy 1 again
    assert kept(rows=False, at=3) == {(1, "train"), (2, "train"), (1, "eval"), (2, "eval")}
    assert open_warehouse(tmp_path / "new-False-3").policy(3)["rolled_back_to"] == 1


def test_an_old_run_is_branched_and_stays_old(tmp_path: Path) -> None:
    shutil.copytree(FIXTURE, tmp_path / "old")
    before = files(tmp_path / "old")
    make_branch(open_warehouse(tmp_path / "old"), tmp_path / "new", 1, rows=True)
    assert files(tmp_path / "old") == before
    branch = open_warehouse(tmp_path / "new")
    old = open_warehouse(tmp_path / "old")
    assert branch.state.newest == old.state.newest == 1
    assert branch.state.scorers(1, "train") == old.state.scorers(1, "train") != []
    assert check_run(branch).problems == check_run(old).problems


def refused(run: Warehouse, new: Path | str, at: int = 0, **options: Any) -> StageError:
    with pytest.raises(StageError) as error:
        make_branch(run, Path(new), at, **{"rows": False, **options})
    assert not list(run.root.parent.glob("*.tmp-*")), "something of it was left"
    return error.value


def test_what_cannot_be_branched_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    for version in (1, 2, 3):
        add_policy(run, version, weights(run, version, f"weights {version}"))
    error = refused(run, tmp_path / "new", 9)
    assert isinstance(error, Refusal) and error.code == "no_policy" and error.fields["option"] == "--at"
    from warehouse.maintain.prune import prune_policies
    prune_policies(run, 2)
    error = refused(run, tmp_path / "new", 1)
    assert isinstance(error, Refusal) and error.code == "weights_gone"
    assert "exists already" in str(refused(run, tmp_path / "model"))
    assert "lies inside" in str(refused(run, run.root / "new"))
    assert "in an object store" in str(refused(run, "s3://bucket/run"))

    def refuse(_file: Path, _to: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    with monkeypatch.context() as patched:
        patched.setattr("warehouse.experiments.branch.os.link", refuse)
        assert "copy its files with --copy" in str(refused(run, tmp_path / "new"))
    (run.policy_dir(2) / "policy.json").unlink()
    assert f"{run.policy_dir(2) / 'policy.json'} is missing" in str(refused(run, tmp_path / "new", 2))


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    add_rollout(run, [("t0", fenced(SAME))], iteration=0)
    names = os.listdir

    def refuse(folder: Path) -> list[str]:
        if "completions" in str(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return names(folder)
    monkeypatch.setattr("warehouse.experiments.branch.os.listdir", refuse)
    folder = run.folder("completions", iteration=0, purpose="train")
    with pytest.raises(StageError, match=f"^{folder} may not be read"):
        make_branch(run, tmp_path / "new", 0, rows=True)


def test_a_model_that_is_a_link_stays_a_link(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    model = run.root / run.facts["model"]
    model.rename(tmp_path / "on another filesystem")
    model.symlink_to("../on another filesystem")
    make_branch(run, tmp_path / "deeper" / "new", 0, rows=False)
    branch = open_warehouse(tmp_path / "deeper" / "new")
    assert (branch.root / run.facts["model"]).is_symlink()
    check_base(branch)


def test_a_run_that_changes_while_it_is_branched_is_branched_again(tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    add_rollout(run, [("t0", fenced(SAME))], iteration=0)
    link: Callable[[Path, Path], None] = os.link

    def compacted_meanwhile(file: Path, to: Path) -> None:
        if "completions" in str(file) and file.name == "manifest.json":
            roll = open_warehouse(run.root)
            roll.append(lambda state: None)
            begin(roll, "rollout", iteration=0, purpose="eval")
            raise FileNotFoundError(errno.ENOENT, "gone", str(file))
        link(file, to)
    monkeypatch.setattr("warehouse.experiments.branch.os.link", compacted_meanwhile)
    assert "was changed by another command meanwhile" in str(refused(run, tmp_path / "new", rows=True))

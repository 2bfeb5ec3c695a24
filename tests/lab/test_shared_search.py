"""A search that is stopped, killed, or shared by several processes: every trial is trained once, and none is lost."""

import os
import shutil
import signal

import optuna
import pytest
from optuna.trial import TrialState
from processes import search_beside_another, side_by_side
from weather import tiny_recipe

from contmax_lab import recipes
from contmax_lab import search as _study
from contmax_lab.runs import Run
from contmax_lab.search import SharedStudy
from contmax_lab.training import train
from contmax_lab.workers import _crew
from forked import process_server

COUNTED = (TrialState.COMPLETE, TrialState.PRUNED)


@pytest.fixture
def config(tmp_path):
    """A recipe with one thing to choose."""
    path = tmp_path / "tiny.yaml"
    text = recipes.as_yaml(tiny_recipe(tmp_path)).partition("search:")[0]
    path.write_text(text + "search: {training.learning_rate: {low: 0.001, high: 0.1, log: true}}")
    return path


@pytest.fixture
def study(tmp_path, empty_database):
    """Opens the same study, as another process would."""
    shutil.copy(empty_database, tmp_path / "s.db")

    def opened():
        return _study.open_study("s", f"sqlite:///{tmp_path / 's.db'}", "minimize")

    return opened


@pytest.fixture
def clock(monkeypatch):
    """Time passes when a test says so."""
    now = [1000.0]
    monkeypatch.setattr(_study.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_study.time, "time", lambda: now[0])
    return now


def test_two_processes_share_a_search(tmp_path, config):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    command = ["search", str(config), "--trials", "6", "--storage", storage, "--runs", str(tmp_path / "runs")]
    said = side_by_side(process_server(), search_beside_another, 2, *command)
    # Both name the same best trial, and only when all are done.
    assert said[0][0] == said[1][0]
    study = optuna.load_study(study_name=str(config), storage=storage)
    ended = study.get_trials(states=COUNTED)
    assert len(ended) == 6
    told = [sum("trial-" in line for line in errors.splitlines()) for _, errors in said]
    assert sum(told) == 6
    assert min(told) >= 1
    rates = [trial.params["training.learning_rate"] for trial in ended]
    assert len(set(rates)) == 6
    assert f"loss {min(trial.value for trial in ended):.6g}" in said[0][0]


def test_a_search_that_is_stopped_goes_on_with_the_trial_that_was_under_way(contmax, config, tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    run, wait = Run(runs / "trial-0000"), _crew.LocalCrew.outcomes
    arguments = ["search", config, "--runs", runs, "--trials", "1", "--training.epochs", "40"]

    def waited(crew, seconds):
        if run.history():
            os.kill(os.getpid(), signal.SIGINT)
        return wait(crew, min(seconds, 0.05))

    with monkeypatch.context() as patch:
        patch.setattr(_crew.LocalCrew, "outcomes", waited)
        code, _, errors = contmax(*arguments)
    assert (code, errors) == (130, [f"contmax: stopped in {runs}, everything is saved; the same command continues"])
    assert run.last_checkpoint().state["position"]["step"] > 0
    assert run.results() is None
    code, printed, errors = contmax(*arguments)
    assert code == 0
    assert printed.startswith("best trial, number 1: loss")
    assert f", in {run.folder}" in printed
    assert [path.name for path in runs.glob("trial-*")] == ["trial-0000"]
    # As if nothing had happened, bit for bit.
    recipe = run.recipe(run_task())
    train(recipe, Run(tmp_path / "alone"))
    assert [r["valid"] for r in run.history()] == [r["valid"] for r in Run(tmp_path / "alone").history()]


def run_task():
    from contmax_lab.registry import find_task

    return find_task("intervals")


def test_a_trial_of_a_dead_process_is_taken_over_and_not_counted_as_done(study, clock):
    dead = SharedStudy(study(), 2, seed=0)
    lost = dead.take()
    chosen = lost.suggest_float("x", 0.0, 1.0)
    alive = SharedStudy(study(), 2, seed=0)
    trial = alive.take()
    trial.suggest_float("x", 0.0, 1.0)
    # Enough are under way, whoever does them.
    assert alive.take() is None
    alive.tell(trial.number, 0.5)
    assert alive.take() is None
    assert not alive.is_complete
    # Half a minute later the other has given no sign of life, which may be; after two minutes it is dead.
    clock[0] += 30
    assert alive.take() is None
    assert not study().get_trials(states=(TrialState.FAIL,))
    clock[0] += 90
    assert alive.take() is None
    clock[0] += 3
    again = alive.take()
    assert (again.number, _study.origin(again)) == (2, lost.number)
    assert again.suggest_float("x", 0.0, 1.0) == chosen
    alive.tell(again.number, 0.25)
    # A process that was only asleep tells its trial in vain.
    dead.tell(lost.number, 0.0)
    states = [trial.state for trial in study().trials]
    assert states == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    assert alive.take() is None
    assert alive.is_complete


def test_a_process_that_gives_signs_of_life_keeps_its_trial(study, clock):
    busy, idle = SharedStudy(study(), 1, seed=0), SharedStudy(study(), 1, seed=0)
    trial = busy.take()
    for _ in range(30):
        clock[0] += 11
        busy.keep_alive()
        assert idle.take() is None
    assert study().trials[trial.number].state is TrialState.RUNNING
    busy.give_back()
    clock[0] += 3
    assert _study.origin(idle.take()) == trial.number


def test_a_trial_that_is_given_back_twice_goes_on_in_its_first_folder(study, clock):
    first = SharedStudy(study(), 1, seed=0)
    trial = first.take()
    chosen = trial.suggest_float("x", 0.0, 1.0)
    first.give_back()
    for number in (1, 2):
        other = SharedStudy(study(), 1, seed=0)
        again = other.take()
        assert (again.number, _study.origin(again)) == (number, trial.number)
        assert again.suggest_float("x", 0.0, 1.0) == chosen
        other.give_back()


def test_of_two_processes_that_ask_in_the_same_moment_one_gives_way(study, clock, monkeypatch):
    first, second = SharedStudy(study(), 1, seed=0), SharedStudy(study(), 1, seed=0)
    counted, taken = second._counted, []

    def late(**keywords):
        # The other asks after this one has looked, and before it asks itself.
        found = counted(**keywords)
        if not taken:
            taken.append(first.take())
        return found

    monkeypatch.setattr(second, "_counted", late)
    assert second.take() is None
    assert taken[0] is not None
    assert [trial.state for trial in study().trials] == [TrialState.RUNNING, TrialState.FAIL]


def test_numbers_are_drawn_by_the_number_of_the_trial(study, clock, tmp_path):
    shared = [SharedStudy(study(), 8, seed=0) for _ in range(2)]
    drawn = [shared[i % 2].take().suggest_float("x", 0.0, 1.0) for i in range(8)]
    assert len(set(drawn)) == 8
    other = _study.open_study("other", f"sqlite:///{tmp_path / 's.db'}", "minimize")
    alone = SharedStudy(other, 8, seed=0)
    assert [alone.take().suggest_float("x", 0.0, 1.0) for _ in range(8)] == drawn


@pytest.mark.parametrize("storage", ["nonsense", "sqlite:////nowhere/at/all.db", "mysql://me:secret@nowhere/base"])
def test_a_database_that_cannot_be_used_is_one_line_without_a_password(contmax, config, tmp_path, storage):
    code, printed, errors = contmax("search", config, "--runs", tmp_path / "runs", "--storage", storage)
    assert (code, printed, len(errors)) == (1, "", 1)
    assert "cannot use the database" in errors[0]
    assert "secret" not in errors[0]


def test_trials_side_by_side(contmax, config, tmp_path):
    runs = tmp_path / "runs"
    code, _, errors = contmax("search", config, "--runs", runs, "--trials", "3", "--jobs", "2")
    assert code == 0
    assert [line.partition("]")[0] for line in errors] == ["[1/3", "[2/3", "[3/3"]
    assert len(list(runs.glob("trial-*"))) == 3

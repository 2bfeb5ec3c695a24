"""A run goes on for longer than it was begun with, finished or not: to the bits of a run that was that long at once."""

import dataclasses
import json

import pytest
from noisy import assert_same_end, interrupt, recipe

from contmax_lab.errors import LabError, UsageError
from contmax_lab.runs import Run
from contmax_lab.training import extension_note, train

# Of these schedules the rate of a step does not depend on the number of epochs.
OPTIONS = {
    "constant": {"optimizer": "adamw", "weight_decay": 0.1},
    "inverse_sqrt": {"schedule": "inverse_sqrt", "warmup_steps": 4, "accumulate": 2},
    "epochs": {"schedule": "epochs", "decay_every": 2, "optimizer": "sgd"},
    "milestones": {"schedule": "milestones", "decay_at": [1, 3], "batch_tokens": 16},
    "plateau": {"schedule": "plateau", "decay": 0.3, "goal": "max", "patience": 9},
}


@pytest.fixture(autouse=True)
def ends(monkeypatch):
    """Folder → what the training was when it ended."""
    states, finish = {}, Run.finish

    def remembered(self, *results, **options):
        states[self.folder] = self.last_checkpoint()
        finish(self, *results, **options)

    monkeypatch.setattr(Run, "finish", remembered)
    return states


def without_times(results):
    return {name: value for name, value in results.items() if name != "timing"}


@pytest.mark.parametrize("name", OPTIONS)
def test_it_ends_with_the_bits_of_a_run_that_was_as_long_at_once(tmp_path, ends, name):
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    wanted = train(recipe(epochs=5, **OPTIONS[name]), whole)
    train(recipe(epochs=2, **OPTIONS[name]), run, extend=True)
    found = {epochs: train(recipe(epochs=epochs, **OPTIONS[name]), run, resume=True, extend=True) for epochs in (3, 5)}
    assert_same_end(ends[run.folder], ends[whole.folder])
    assert without_times(found[5]) == without_times(wanted)
    assert [record["valid"] for record in run.history()] == [record["valid"] for record in whole.history()]
    assert run.recipe(recipe().task).training.epochs == 5


def test_an_interrupted_run_may_become_longer(tmp_path, ends, monkeypatch):
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(recipe(epochs=4), whole)
    for epochs, stop in ((2, 7), (4, 13)):
        with monkeypatch.context() as patch:
            interrupt(patch, stop)
            with pytest.raises(LabError, match="enough"):
                train(recipe(epochs=epochs), run, resume=True, extend=True)
    train(recipe(epochs=4), run, resume=True, extend=True)
    assert_same_end(ends[run.folder], ends[whole.folder])


def test_a_run_that_is_stopped_while_it_becomes_longer_goes_on(tmp_path, ends, monkeypatch):
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(recipe(epochs=4), whole)
    train(recipe(epochs=2), run, extend=True)
    with monkeypatch.context() as patch:
        interrupt(patch, 13)
        with pytest.raises(LabError, match="enough"):
            train(recipe(epochs=4), run, resume=True, extend=True)
    assert run.results() is None
    train(recipe(epochs=4), run, resume=True)
    assert_same_end(ends[run.folder], ends[whole.folder])


def test_only_the_last_checkpoint_stays_and_only_where_it_is_wanted(tmp_path):
    run, other = Run(tmp_path / "run"), Run(tmp_path / "other")
    train(recipe(epochs=2), run, extend=True)
    train(recipe(epochs=2), other)
    assert [path.name for path in run.checkpoints.glob("step-*")] == ["step-000000010.safetensors"]
    assert not list(other.checkpoints.glob("step-*"))
    with pytest.raises(UsageError, match="is finished and has no checkpoint to go on from: contmax train keeps"):
        train(recipe(epochs=4), other, resume=True, extend=True)
    assert other.results()["epochs"] == 2


def test_what_cannot_be_extended_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    train(recipe(epochs=3), run, extend=True)
    before = {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    for changes, options, says in (
        ({"epochs": 2}, {"extend": True}, "was begun with 3 epochs and cannot become shorter; got training.epochs 2"),
        ({"epochs": 4, "learning_rate": 0.5}, {"extend": True}, r"recipe \(training.learning_rate: .*, now 0.5\)"),
        ({"epochs": 4}, {}, r"another recipe \(training.epochs: 3, now 4\)"),
        ({"epochs": 4}, {"extend": True, "resume": False}, "pass --resume to continue it"),
    ):
        with pytest.raises(UsageError, match=says):
            train(recipe(**changes), run, **{"resume": True, **options})
    longer = recipe(epochs=4)
    monkeypatch.setattr(type(longer.task), "load", lambda *arguments: (_ for _ in ()).throw(LabError("no data")))
    with pytest.raises(LabError, match="no data"):
        train(longer, run, resume=True, extend=True)
    assert before == {path.name: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}


def test_an_early_stop_is_undone_by_patience_alone(tmp_path, ends):
    stopping = {"epochs": 9, "goal": "max"}  # the loss falls, so that there is no new best
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    train(recipe(**{**stopping, "patience": 4}), whole)
    assert train(recipe(**stopping, patience=2), run, extend=True)["epochs"] < 9
    stopped = run.results()["epochs"]
    with pytest.raises(UsageError, match=rf"stopped early, after {stopped} epochs: training\.patience is 2"):
        train(recipe(**{**stopping, "epochs": 12}, patience=2), run, resume=True, extend=True)
    assert run.results()["epochs"] == stopped
    train(recipe(**stopping, patience=4), run, resume=True, extend=True)
    assert_same_end(ends[run.folder], ends[whole.folder])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_a_line_says_what_happens(tmp_path, ends, schedule):
    run, options = Run(tmp_path / "run"), {"schedule": schedule}
    assert extension_note(recipe(**options), run) == ""
    train(recipe(epochs=2, **options), run, extend=True)
    assert [extension_note(recipe(epochs=epochs, **options), run) for epochs in (1, 2)] == ["", ""]
    longer = recipe(epochs=4, **options)
    note = extension_note(longer, run)
    assert note.startswith(f"{run.folder} goes on after epoch 2, now up to epoch 4")
    assert ("50% of the highest" in note) == (schedule != "constant")
    train(longer, run, resume=True, extend=True)
    rates = json.loads(json.dumps(ends[run.folder].state["optimizer"]["groups"]))
    last = {"cosine": 0.0062, "linear": 0.05, "constant": 1.0}[schedule]
    assert rates[0]["lr"] / longer.training.learning_rate == pytest.approx(last, abs=0.001)
    assert dataclasses.replace(longer.training, epochs=2) == recipe(epochs=2, **options).training


def test_the_command_makes_a_run_longer(config, contmax, tmp_path):
    words = ["train", config, "--folder", tmp_path / "run"]
    assert contmax(*words, "--training.epochs=2")[0] == 0
    code, out, errors = contmax(*words, "--training.epochs=4", "--resume")
    assert (code, errors) == (0, [])
    assert out.startswith(f"{tmp_path / 'run'} goes on after epoch 2, now up to epoch 4")
    assert " of 4, " in out

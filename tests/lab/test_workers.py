"""Workers: what is handed out, what comes back, and how they stop; on processes of this machine."""

import contextlib
import os
import signal

import pytest
from weather import tiny_recipe

from contmax_lab.contract import Task
from contmax_lab.errors import Interrupted, LabError
from contmax_lab.registry import find_task, task_reference
from contmax_lab.runs import Run
from contmax_lab.workers import LocalProcesses, Outcome, Training, _crew, train_all
from contmax_lab.workers._ray import Order, train_ordered


class Scripted:
    """Workers that do nothing, and remember what they were given."""

    def __init__(self, room):
        self.room, self.begun, self.under_way, self.most = room, [], [], 0

    @contextlib.contextmanager
    def open(self):
        yield self

    def has_room(self):
        return len(self.under_way) < self.room

    def begin(self, training):
        self.begun.append(training)
        self.under_way.append(training)
        self.most = max(self.most, len(self.under_way))

    def outcomes(self, seconds):
        return [Outcome(self.under_way.pop(0))] if self.under_way else []

    def stop(self):
        return [Outcome(self.under_way[0])]


@pytest.mark.parametrize(("room", "most"), [(1, 1), (2, 2), (8, 3)])
def test_as_many_side_by_side_as_there_is_room_for(room, most):
    workers = Scripted(room)
    assert [outcome.training for outcome in train_all(workers, "abc")] == ["a", "b", "c"]
    assert workers.begun == ["a", "b", "c"]
    assert workers.most == most


def test_the_next_training_is_asked_for_when_there_is_room_and_may_come_later():
    workers, asked = Scripted(1), []

    def trainings():
        for training in ("a", None, None, "b"):
            asked.append((training, len(workers.under_way)))
            yield training

    outcomes = list(train_all(workers, trainings()))
    assert [outcome and outcome.training for outcome in outcomes] == ["a", None, None, "b"]
    assert asked == [("a", 0), (None, 0), (None, 0), ("b", 0)]


def test_when_time_is_up_what_was_over_is_told_and_nothing_begins(monkeypatch):
    monkeypatch.setattr(_crew.time, "monotonic", iter([0.0, 0.0, 20.0]).__next__)
    workers, told = Scripted(2), []

    def note():
        for outcome in train_all(workers, "abcd", deadline=10.0):
            told.append(outcome.training)  # noqa: PERF401, what came before the error counts

    with pytest.raises(Interrupted, match=r"^time is up$"):
        note()
    assert workers.begun == ["a", "b", "c"]
    # The last one was over before it heard that it should stop.
    assert told == ["a", "b", "c"]


def slow(tmp_path, name):
    return Training(tiny_recipe(tmp_path, "--training.epochs=100000"), tmp_path / name, test=True)


def test_a_process_that_dies_is_named_and_its_place_is_taken(tmp_path):
    quick = Training(tiny_recipe(tmp_path), tmp_path / "quick", test=True)
    outcomes = []
    with LocalProcesses(1).open() as crew:
        crew.begin(slow(tmp_path, "slow"))
        assert not crew.has_room()
        while not Run(tmp_path / "slow").history():
            assert crew.outcomes(0.1) == []
        os.kill(crew._busy[0].process.pid, signal.SIGKILL)
        outcomes += crew.outcomes(60)
        assert crew.has_room()
        crew.begin(quick)
        outcomes += crew.outcomes(60)
    assert outcomes[0].problem == "the training process ended with exit code -9; the same command continues"
    assert outcomes[1] == Outcome(quick)
    assert Run(tmp_path / "quick").results()["test"]


def test_whoever_leaves_early_leaves_no_process_and_all_is_saved(tmp_path):
    run = Run(tmp_path / "slow")

    def look():
        for _ in train_all(LocalProcesses(1), [slow(tmp_path, "slow")]):
            if run.history():
                raise LabError("enough")

    with pytest.raises(LabError, match="enough"):
        look()
    with run.claimed():
        assert run.last_checkpoint().state["position"]["step"] > 0


# -- orders for other machines -----------------------------------------------------------------------------------------


def order(folder, **changes):
    plain = {"task": "intervals", "current_folder": os.getcwd(), "folder": str(folder), "runs": [str(folder)]}
    return Order(**plain | {"test": True} | changes)


def test_an_order_is_a_folder_with_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tiny_recipe(tmp_path)
    Run("run").begin(recipe, resume=True)
    assert train_ordered(order("run")) == ("done", "")
    assert Run("run").recipe(recipe.task) == recipe
    assert Run("run").results()["test"]
    assert train_ordered(order("run", task="vowels")) == (
        "failed",
        f"{os.uname().nodename}: run is a run of the task intervals, not of vowels",
    )


def test_an_order_of_several_runs_is_an_ensemble(tmp_path):
    runs = [Run(tmp_path / "row" / f"seed-{seed}") for seed in range(2)]
    for seed, run in enumerate(runs):
        run.folder.mkdir(parents=True)
        run.begin(tiny_recipe(tmp_path, "--training.batch_size=0", f"--seed={seed}"), resume=True)
    folders = [str(run.folder) for run in runs]
    assert train_ordered(order(tmp_path / "row", runs=folders)) == ("done", "")
    # Only an ensemble measures its last weights as well.
    assert all(run.results()["last"]["test"] for run in runs)
    assert sorted(path.name for path in (tmp_path / "row").iterdir()) == ["seed-0", "seed-1"]


def test_what_a_machine_cannot_see_is_named(tmp_path, monkeypatch):
    from contmax_lab.workers import _ray

    monkeypatch.setattr(_ray, "_PATIENCE", 0.0)
    shared = "of storage that all machines share, under the same path"
    kind, text = train_ordered(order(tmp_path / "run", current_folder="/nowhere"))
    assert kind == "failed"
    assert text.endswith(f"cannot enter /nowhere: No such file or directory; run the command in a folder {shared}")
    kind, text = train_ordered(order(tmp_path / "run"))
    assert text.endswith(f"there is no {tmp_path}/run/config.yaml; pass --runs with a folder {shared}")


def test_a_worker_waits_for_the_end_of_the_one_whose_place_it_takes(tmp_path, monkeypatch):
    from contmax_lab.workers import _ray

    run = Run(tmp_path / "run")
    run.begin(tiny_recipe(tmp_path), resume=True)
    before = contextlib.ExitStack()
    before.enter_context(run.claimed())
    slept = []
    monkeypatch.setattr(_ray.time, "sleep", lambda seconds: slept.append(seconds) or before.close())
    assert train_ordered(order(run.folder)) == ("done", "")
    assert slept == [0.5]
    monkeypatch.setattr(_ray, "_PATIENCE", 0.0)
    with run.claimed():
        _, text = train_ordered(order(run.folder))
    assert "another process is training in" in text


def test_a_task_is_found_again_by_its_name_or_by_the_module_that_holds_it(tmp_path, monkeypatch):
    assert task_reference(find_task("vowels")) == "vowels"
    folder = tmp_path / "tides_package"
    folder.mkdir()
    (folder / "_inner.py").write_text(
        "from contmax_lab.contract import Task\n\n\nclass Tides(Task):\n    name, summary = 'tides', ''\n"
        "    data_config = model_config = int\n    load = build = batch = loss = None\n"
    )
    (folder / "__init__.py").write_text("from tides_package._inner import Tides\n\nTASK = Tides()\n")
    monkeypatch.syspath_prepend(tmp_path)
    task = find_task("tides_package:TASK")
    assert isinstance(task, Task)
    assert task_reference(task) == "tides_package:TASK"
    with pytest.raises(LabError, match="other machines cannot find the task tides"):
        task_reference(type(task)())

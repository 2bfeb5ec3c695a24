"""Trainings that are killed, interrupted or starved end as if nothing had happened, or say why not."""

import dataclasses
import errno
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from processes import say_into, train_with_little_space
from weather import tiny_recipe

from contmax_lab import recipes
from contmax_lab.errors import Interrupted, LabError, UsageError
from contmax_lab.registry import find_task
from contmax_lab.runs import Run
from contmax_lab.training import train
from forked import process_server


@pytest.fixture(scope="module")
def server():
    return process_server()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A recipe, and a run of it that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    recipe, run = tiny_recipe(folder, "--training.checkpoint_seconds=0"), Run(folder / "run")
    train(recipe, run)
    return recipe, run


def outcome(run):
    """All that must not depend on interruptions: results, metrics and weights, without times."""
    results = run.results()
    del results["timing"]
    metrics = [{key: value for key, value in record.items() if key != "seconds"} for record in run.history()]
    weights = {name: tensor.tolist() for name, tensor in safetensors.torch.load_file(run.weights).items()}
    return results, metrics, weights


def checkpoints(run):
    return sorted(path.name for path in run.checkpoints.glob("step-*"))


def test_a_partial_file_of_a_killed_process_is_no_checkpoint(tmp_path, whole):
    (recipe, undisturbed), run = whole, Run(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    (run.checkpoints / ".step-000000009.safetensors.partial").write_bytes(b"half")
    run.metrics.write_text('{"epoch": 1, "cut sho')
    train(recipe, run, resume=True)
    assert outcome(run) == outcome(undisturbed)


def test_results_are_decided_by_the_recipe(tmp_path, whole):
    (recipe, first), second, other = whole, Run(tmp_path / "2"), Run(tmp_path / "3")
    torch.rand(7)  # what others draw does not matter
    train(recipe, second)
    train(dataclasses.replace(recipe, seed=1), other)
    assert outcome(first) == outcome(second)
    assert outcome(first)[2] != outcome(other)[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_goes_on(tmp_path, monkeypatch, whole, number, code):
    undisturbed = whole[1]
    # It saves because of the signal alone.
    recipe, run = tiny_recipe(tmp_path), Run(tmp_path / "run")
    seen = []
    from contmax_lab.training import _learner

    step = _learner.Learner.step

    def signalled(self, *arguments):
        step(self, *arguments)
        seen.append(arguments)
        if len(seen) == 5:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(_learner.Learner, "step", signalled)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped at step 5, everything is saved; pass --resume") as caught:
        train(recipe, run)
    assert caught.value.exit_code == code
    assert signal.getsignal(signal.SIGINT) is handler
    assert checkpoints(run) == ["step-000000005.safetensors"]
    train(recipe, run, resume=True)
    assert outcome(run) == outcome(undisturbed)


def test_what_happened_after_the_last_checkpoint_is_forgotten_and_the_best_weights_are_not(tmp_path, monkeypatch):
    # The loss falls, so with the goal turned round the first weights are the best.
    recipe = tiny_recipe(tmp_path, "--training.goal=max", "--training.epochs=5", "--training.learning_rate=0.01")
    undisturbed, run = Run(tmp_path / "undisturbed"), Run(tmp_path / "run")
    assert train(recipe, undisturbed)["best_epoch"] == 1
    from contmax_lab.training import _learner

    step = _learner.Learner.step
    per_epoch = undisturbed.results()["steps"] // 5

    def interrupted_at(last, act):
        def limited(self, indices, number, total):
            step(self, indices, number, total)
            if number == last:
                act()

        return limited

    def crash():
        raise RuntimeError("crash")

    monkeypatch.setattr(
        _learner.Learner, "step", interrupted_at(per_epoch, lambda: os.kill(os.getpid(), signal.SIGINT))
    )
    with pytest.raises(Interrupted):
        train(recipe, run)
    monkeypatch.setattr(_learner.Learner, "step", interrupted_at(3 * per_epoch, crash))
    with pytest.raises(RuntimeError, match="crash"):
        train(recipe, run, resume=True)
    assert [record["epoch"] for record in run.history()] == [1, 2, 3]
    monkeypatch.undo()
    train(recipe, run, resume=True)
    assert outcome(run) == outcome(undisturbed)


def test_ctrl_c_on_the_command_exits_with_130(tmp_path, server):
    recipe = tiny_recipe(tmp_path, "--training.epochs=100000", "--training.checkpoint_seconds=0.1")
    config, run = tmp_path / "long.yaml", Run(tmp_path / "run")
    config.write_text(recipes.as_yaml(recipe))
    process = server.Process(target=say_into, args=(tmp_path, "train", str(config), "--folder", str(run.folder)))
    process.start()
    while process.is_alive() and not checkpoints(run):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    printed, complaints = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
    assert complaints.splitlines()[-1].startswith("contmax: stopped at step ")
    assert "Traceback" not in complaints
    assert printed == ""


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_once(whole, tmp_path_factory):
    """A run that was stopped after its seventh step, with a checkpoint for each."""
    recipe, run = whole[0], Run(tmp_path_factory.mktemp("stopped") / "run")
    from contmax_lab.training import _learner

    step = _learner.Learner.step

    def limited(self, indices, number, total):
        if number == 7:
            raise LabError("enough")
        step(self, indices, number, total)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_learner.Learner, "step", limited)
        with pytest.raises(LabError, match="enough"):
            train(recipe, run)
    assert checkpoints(run) == ["step-000000006.safetensors", "step-000000007.safetensors"]
    return run


@pytest.fixture
def stopped(whole, stopped_once, tmp_path):
    """The recipe and a copy of the run, for one test to go on with."""
    return whole[0], Run(shutil.copytree(stopped_once.folder, tmp_path / "stopped"))


def contents(run):
    return {path.name: path.read_bytes() for path in sorted(run.checkpoints.iterdir())}


def test_a_full_disk_leaves_the_last_checkpoint_alone(stopped, monkeypatch):
    recipe, run = stopped
    before = contents(run)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LabError, match="No space left on device") as caught:
            train(recipe, run, resume=True)
    assert "\n" not in str(caught.value)
    assert contents(run) == before
    train(recipe, run, resume=True)
    assert run.results()["epochs"] == 3


def test_a_disk_that_fills_up_while_writing(stopped, server):
    recipe, run = stopped
    before = contents(run)
    answer = server.Queue()
    process = server.Process(target=train_with_little_space, args=(recipe, run.folder, answer))
    process.start()
    process.join()
    assert "cannot write" in answer.get(timeout=5)
    assert contents(run) == before


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_still_serves(stopped, whole, damage):
    recipe, run = stopped
    last = run.checkpoints / checkpoints(run)[-1]
    content = bytearray(last.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-100] ^= 1
    elif damage == "empty":
        content = b""
    else:
        content = safetensors.torch.save({"x": torch.zeros(2)})
    last.write_bytes(content)
    way = r"step-000000007.*Delete it and pass --resume to continue from step-000000006"
    with pytest.raises(LabError, match=way) as error:
        train(recipe, run, resume=True)
    assert "\n" not in str(error.value)
    assert last.read_bytes() == content
    last.unlink()
    train(recipe, run, resume=True)
    assert outcome(run) == outcome(whole[1])


@pytest.mark.parametrize("poison", ["loss", "gradient", "valid"])
def test_numbers_that_are_not_finite_stop_before_anything_is_saved(stopped, monkeypatch, poison):
    recipe, run = stopped
    before = contents(run)
    task = type(find_task("intervals"))
    loss = task.loss

    def poisoned(self, output, batch):
        values, weights = loss(self, output, batch)
        if (poison == "valid") == torch.is_grad_enabled():
            return values, weights
        if poison == "gradient":
            return values + (0 * output.loc).clamp(min=0).sqrt(), weights  # finite, with an infinite slope
        return values * torch.nan, weights

    monkeypatch.setattr(task, "loss", poisoned)
    with pytest.raises(LabError, match=r"not finite|is nan") as error:
        train(recipe, run, resume=True)
    assert "\n" not in str(error.value)
    if poison != "valid":
        assert contents(run) == before
    monkeypatch.undo()
    train(recipe, run, resume=True)
    assert run.results()["epochs"] == 3


def test_a_run_is_not_overwritten_nor_resumed_by_another_recipe(stopped):
    recipe, run = stopped
    with pytest.raises(UsageError, match="already holds a run; pass --resume"):
        train(recipe, run)
    with pytest.raises(UsageError, match=r"started with another recipe \(model.hidden_dim: 8, now 9\)"):
        train(dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, hidden_dim=9)), run, resume=True)


def test_two_processes_do_not_train_in_one_folder(stopped):
    recipe, run = stopped
    with run.claimed(), pytest.raises(LabError, match="another process is training"):
        train(recipe, Run(run.folder), resume=True)


def test_a_run_that_is_done_is_not_done_again(whole):
    recipe, run = whole
    results = run.results()
    stamp = run.weights.stat().st_mtime_ns
    assert train(recipe, run, resume=True) == results
    assert run.weights.stat().st_mtime_ns == stamp
    assert json.loads((run.folder / "results.json").read_text()) == results


def test_data_may_move_between_two_parts_of_a_run(stopped, tmp_path):
    recipe, run = stopped
    data = dataclasses.replace(recipe.data, path=Path(shutil.copy(recipe.data.path, tmp_path)))
    train(dataclasses.replace(recipe, data=data), run, resume=True)
    assert run.results()["epochs"] == 3

"""Files are replaced in one step and in an order that a power cut cannot undo; splits hold what they promise."""

import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest
from weather import tiny_recipe

from contmax_lab.data import non_overlapping_holdout, shuffled
from contmax_lab.errors import CannotWrite
from contmax_lab.files import make_folder, write_atomically, write_json
from contmax_lab.runs import Run


def test_content_is_on_disk_before_the_name_and_the_name_before_it_returns(tmp_path, monkeypatch):
    path, order = tmp_path / "new" / "file.bin", []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        order.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        if order[-1][1] != "new":
            assert os.fstat(descriptor).st_size == 5  # nothing is left in Python's buffer
        fsync(descriptor)

    def noted_replace(source, target):
        order.append(("replace", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomically(path, b"hello")
    assert order == [("fsync", ".file.bin.partial"), ("replace", "file.bin"), ("fsync", "new")]
    assert path.read_bytes() == b"hello"
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize(
    ("number", "way"),
    [(errno.ENOSPC, "Free some space"), (errno.EDQUOT, "Free some space"), (errno.EACCES, "Choose a place")],
)
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_what_was_there_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch, number, way, step):
    path = tmp_path / "file.bin"
    write_atomically(path, b"old")

    def fails(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(CannotWrite, match=rf"cannot write .*file.bin: {os.strerror(number)}.*untouched. {way}"):
        write_atomically(path, b"new")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("file.bin", b"old")]


def test_numbers_that_json_does_not_know_are_not_written(tmp_path):
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"loss": float("nan")})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"ü": [1, None]}
    assert "ü" in text
    assert text.endswith("}\n")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"cannot make .*file/below: Not a directory"):
        make_folder(tmp_path / "file" / "below")
    assert make_folder(tmp_path / "a" / "b") == make_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"


# -- which recipe a run is of ------------------------------------------------------------------------------------------

CHANGES = {
    "model": {"hidden_dim": 9, "dropout": 0.4},
    "training": {"weight_decay": 0.5, "optimizer": "sgd", "evaluate_every": 3, "precision": "bf16"},
    "data": {"split": 5, "apart": False, "path": Path("elsewhere/other.csv")},
}
FREE = {
    "training": {"checkpoint_seconds": 7.0, "tensorboard": True, "wandb": "project", "workers": 3},
    "data": {"path": Path("elsewhere/weather.csv")},
}


def changed(recipe, section, **values):
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **values)})


def test_every_key_that_decides_is_compared_and_no_other(tmp_path):
    run, recipe = Run(tmp_path / "run"), tiny_recipe(tmp_path)
    run.begin(recipe, resume=False)
    assert run.differences(recipe) == []
    for section, values in CHANGES.items():
        for key, value in values.items():
            (difference,) = run.differences(changed(recipe, section, **{key: value}))
            assert difference.startswith(f"{section}.{key}: ")
    assert run.differences(dataclasses.replace(recipe, seed=4)) == ["seed: 0, now 4"]
    for section, values in FREE.items():
        assert run.differences(changed(recipe, section, **values)) == []


# -- splits ------------------------------------------------------------------------------------------------------------


def test_an_order_depends_on_the_seed_alone():
    assert shuffled(50, 3) == shuffled(50, 3)
    assert len({tuple(shuffled(50, seed)) for seed in range(5)}) == 5
    assert all(sorted(shuffled(50, seed)) == list(range(50)) for seed in range(5))


def test_parts_are_filled_one_after_the_other_and_keep_apart_from_each_other():
    def overlap(one, other):
        return abs(one - other) < 4

    windows = [3 * place for place in range(200)]
    parts = [non_overlapping_holdout(windows, [7, 11, 5], seed, overlap) for seed in range(4)]
    for held_out in parts:
        assert [len(part) for part in held_out] == [7, 11, 5]
        assert held_out == [sorted(part) for part in held_out]
        taken = [windows[index] for part in held_out for index in part]
        assert not any(overlap(a, b) for i, a in enumerate(taken) for b in taken[:i])
    assert len({str(held_out) for held_out in parts}) == 4

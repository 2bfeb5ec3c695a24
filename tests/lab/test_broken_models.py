"""Model folders that somebody has changed, or that came in part: one line each, at once."""

import json
import math
import shutil
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

import contmax_lab

TASKS = Path(contmax_lab.__file__).parent / "tasks"
SHIPPED = {"documents": TASKS / "documents" / "pretrained", "digits": TASKS / "images" / "digits" / "pretrained"}
ASKED = {"documents": "A wonderful film.", "digits": "missing.png"}
# Of a busy machine; a hundred million functions took minutes.
SECONDS = 15


@pytest.fixture(params=SHIPPED)
def folder(request, tmp_path):
    made = tmp_path / request.param
    made.mkdir()
    for file in ("config.json", "model.safetensors", "vocab.txt"):
        if (SHIPPED[request.param] / file).exists():
            shutil.copy(SHIPPED[request.param] / file, made)
    return made


def complaint(contmax, folder):
    """The one line that the command prints, with little patience."""
    began = time.perf_counter()
    code, printed, errors = contmax("predict", "--model", folder, ASKED[folder.name])
    assert time.perf_counter() - began < SECONDS
    assert (code, printed, len(errors)) == (1, "", 1), errors
    assert len(errors[0]) < 400
    return errors[0]


def change(folder, **settings):
    card = json.loads((folder / "config.json").read_text())
    card["model"].update(settings)
    (folder / "config.json").write_text(json.dumps(card))


def test_the_folders_answer_as_they_are(contmax, folder):
    if folder.name == "documents":
        code, printed, errors = contmax("predict", "--model", folder, ASKED["documents"])
        assert (code, errors) == (0, [])
        assert printed.startswith("positive (")
    else:
        assert "missing.png" in contmax("predict", "--model", folder, "missing.png")[2][0]


WRONG = [
    ({"alpha": math.nan}, "model.alpha must be a number above 0; got nan"),
    ({"alpha": -3}, "model.alpha must be a number above 0; got -3"),
    ({"alpha": 0}, "model.alpha must be a number above 0; got 0"),
    ({"alpha": "2,0"}, "model.alpha must be a number above 0; got 2,0"),
    ({"alpha": None}, "model.alpha must not be null; leave it out for 2.0"),
    ({"hidden_dim": -1}, "model.hidden_dim must be a whole number above 0; got -1"),
    ({"dropout": 1.5}, "model.dropout must be a number from 0 to 1; got 1.5"),
]
WRONG_OF = {
    "documents": [
        ({"penalty": -1}, "model.penalty must be a number above 0; got -1"),
        ({"penalty": math.nan}, "model.penalty must be a number above 0; got nan"),
        ({"num_basis": 100_000_000}, "model.num_basis must be a whole number from 1 to 10,000; got 100000000"),
        ({"num_basis": 10_000}, "(10000,) in the model"),
        ({"hidden_dim": 100_000_000}, "does not fit"),
        ({"hidden_dim": 40_000}, "does not fit"),
        ({"head": "tails"}, "model.head must be pooled, gates or narrow; got tails"),
    ],
    "digits": [
        ({"functions": 100_000_000}, "model.functions must be a whole number from 1 to 100; got 100000000"),
        ({"functions": 100}, "(10000, 2)"),
        ({"heads": 100_000_000}, "model.heads must be a whole number from 1 to 100; got 100000000"),
        ({"layers": 100_000_000}, "model.layers must be a whole number from 1 to 100; got 100000000"),
        ({"hidden_dim": 100_000_000}, "does not fit"),
    ],
}


def test_settings_that_no_model_has(contmax, folder):
    whole = (folder / "config.json").read_text()
    for settings, says in WRONG + WRONG_OF[folder.name]:
        change(folder, **settings)
        line = complaint(contmax, folder)
        assert says in line, (settings, line)
        assert str(folder) in line
        (folder / "config.json").write_text(whole)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite(contmax, folder, number):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.is_floating_point() and tensor.dim() == 2)
    weights[name][-1, -1] = number
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    line = complaint(contmax, folder)
    assert f"{folder / 'model.safetensors'}: {name} has 1 weight that is NaN or infinite" in line


def test_files_that_are_missing(contmax, folder):
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        file.unlink()
        assert complaint(contmax, folder) == f"contmax: {file}: no such file; make the folder with contmax export RUN"
        file.write_bytes(content)


def test_weights_of_another_model(contmax, folder):
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    name = next(iter(weights))
    for changed in (
        {n: w for n, w in weights.items() if n != name},
        {**weights, "one.more": torch.zeros(3)},
        {**weights, name: torch.cat([weights[name]] * 2)},
    ):
        safetensors.torch.save_file(changed, folder / "model.safetensors")
        assert "does not fit" in complaint(contmax, folder)


def test_the_explorer_refuses_them_too(contmax, folder, tmp_path):
    from contmax_lab.errors import LabError
    from contmax_lab.explorer._models import Models

    change(folder, alpha=math.nan)
    with pytest.raises(LabError, match=r"model\.alpha must be a number above 0"):
        Models(tmp_path).open(folder.name)

"""Folders made by contmax export in the explorer: listed, opened without their data, and never executed."""

import json
import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from explorer_server import asked, serving, tiny_text_run

from contmax_lab.cli import main
from contmax_lab.errors import LabError
from contmax_lab.explorer._models import Models

SHIPPED = {"digits": "images/digits/pretrained", "documents": "documents/pretrained"}
TEXT = "a superb film, wonderful"


def shipped(task, folder):
    """A model folder of the package, elsewhere; it was made by contmax export."""
    origin = resources.files("contmax_lab") / "tasks" / SHIPPED[task]
    return Path(shutil.copytree(str(origin), folder))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("exported")
    run = tiny_text_run(made)
    main(["export", str(run), "--into", str(made / "runs" / "models" / "stars")])
    shipped("digits", made / "runs" / "digits-model")
    shipped("documents", made / "elsewhere" / "reader")
    # Exported models do not need what they were trained on.
    (made / "reviews.csv").unlink()
    return made


@pytest.fixture(scope="module")
def models(folder):
    return Models(folder / "runs", [folder / "elsewhere" / "reader"])


def test_exported_models_are_listed_and_asked(folder):
    reader = folder / "elsewhere" / "reader"
    with serving(folder / "runs", [reader]) as port:
        listed = {model["name"]: model for model in asked(port, "GET", "/api/models")[2]}
        assert listed["models/stars"] == {
            "name": "models/stars",
            "kind": "text",
            "title": "exported model models/stars (texts)",
        }
        assert listed["digits-model"]["kind"] == "image"
        assert listed[f"model:{reader}"]["title"] == f"exported model {reader} (documents)"
        status, _, seen = asked(port, "POST", "/api/text", {"model": "models/stars", "text": TEXT})
        assert (status, seen["classes"]) == (200, ["1", "3", "5"])
        question = {"look": seen["look"], "low": 0.1, "high": 0.5}
        assert asked(port, "POST", "/api/interval", question)[0] == 200
        assert asked(port, "GET", "/api/examples?model=digits-model")[::2] == (200, [])
        status, _, said = asked(port, "POST", "/api/example", {"model": "digits-model", "number": 0})
        assert (status, said["error"]) == (422, "there is no example 1; the model has 0")


def test_an_exported_model_says_what_the_one_in_the_package_says(models, folder):
    own, other = (models.open(name) for name in (f"model:{folder / 'elsewhere' / 'reader'}", "packaged:documents"))
    given = "What we got is a dull, badly written mess."
    for exported, packaged in zip(own.look(given).heads, other.look(given).heads, strict=True):
        assert torch.equal(exported.context, packaged.context)
    digits = models.open("packaged:digits")
    pixels = digits.task.batch(digits.examples, [3])["pixels"][0]
    looks = (models.open("digits-model").look(pixels), digits.look(pixels))
    for exported, packaged in zip(*(look.heads for look in looks), strict=True):
        assert torch.equal(exported.context, packaged.context)


@pytest.mark.parametrize("task", SHIPPED)
def test_weights_that_are_a_pickle_are_refused(tmp_path, task):
    broken = shipped(task, tmp_path / "pickled")

    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "it was run",))

    torch.save({"weight": Bomb()}, broken / "model.safetensors")
    with pytest.raises(LabError, match="holds no model that can be read"):
        Models(tmp_path).open("pickled")
    assert not (tmp_path / "it was run").exists()


@pytest.mark.parametrize(
    "card",
    ['{"task": "of somebody else"}', '{"task": "series"}', '{"task": 3}', "[1]", "{", "[" * 100_000, "null", "\udcff"],
)
def test_what_is_no_model_to_look_with_is_not_listed(tmp_path, card):
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_bytes(card.encode("utf-8", "surrogateescape"))
    (tmp_path / "odd" / "model.safetensors").write_bytes(b"")
    models = Models(tmp_path, [tmp_path / "none", tmp_path / "odd"])
    assert {each.name for each in models.listed()} == {"packaged:digits", "packaged:documents"}
    with pytest.raises(KeyError):
        models.open("odd")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_to_files_are_not_followed(tmp_path, name):
    outside, inside = shipped("digits", tmp_path / "outside"), shipped("digits", tmp_path / "runs" / "inside")
    (inside / name).unlink()
    (inside / name).symlink_to(outside / name)
    with pytest.raises(KeyError):
        Models(tmp_path / "runs").open("inside")


def test_the_card_is_read_again_when_it_has_changed(tmp_path):
    made = shipped("digits", tmp_path / "mine")
    models = Models(tmp_path)
    assert "mine" in {each.name for each in models.listed()}
    (made / "config.json").write_text(json.dumps({"task": "series"}))
    assert "mine" not in {each.name for each in models.listed()}


def test_a_folder_named_on_the_command_line_must_hold_a_model(contmax, tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.append(self))
    code, _, (complaint,) = contmax("explore", "--no-browser", "--model", tmp_path / "none")
    assert (code, complaint) == (
        1,
        f"contmax: {tmp_path / 'none' / 'config.json'}: no such file; make the folder with contmax export RUN",
    )
    (tmp_path / "config.json").write_text('{"task": "series"}')
    code, _, (complaint,) = contmax("explore", "--no-browser", "--model", tmp_path)
    assert code == 1
    assert "the page shows texts and images only" in complaint
    assert not served
    own = shipped("digits", tmp_path / "digits")
    assert contmax("explore", "--no-browser", "--port", 8799, "--model", own)[0] == 0
    assert served

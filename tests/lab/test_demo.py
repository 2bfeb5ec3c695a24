"""The demo: its data, its attentions, every recipe for one step, and the report in a real browser."""

import contextlib
import io
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from here import Here

from chromium import Visits, needs_chromium
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.nn import ContinuousAttention
from contmax_lab.attention import Attention
from contmax_lab.cli import main
from contmax_lab.data import _packaged
from contmax_lab.demo import demo_tables
from contmax_lab.drawing import DARK, LIGHT, new_axes, rendered_twice
from contmax_lab.errors import LabError
from contmax_lab.registry import find_task, load_recipe, open_trained, shipped_recipes
from contmax_lab.runs import Run
from contmax_lab.tasks.documents._pretrained import EXAMPLES
from contmax_lab.tasks.images.digits import DigitsData
from contmax_lab.tasks.series.vowels import VowelsData
from contmax_lab.training import train
from contmax_lab.workers import LocalProcesses

PHONE = {"width": 390, "height": 800}
KINDS = [name for name in shipped_recipes() if name.startswith(("vowels/", "digits/"))]


# -- data --------------------------------------------------------------------------------------------------------------


def test_vowels_come_in_the_published_split():
    splits = find_task("vowels").load(VowelsData(), seed=0)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (216, 54, 370)
    assert splits.valid.target.bincount().tolist() == [6] * 9
    assert splits.train.target.bincount().tolist() == [24] * 9
    assert splits.info["classes"][8] == "speaker 9"
    lengths = {len(series) for series in (*splits.train.values, *splits.valid.values, *splits.test.values)}
    assert (min(lengths), max(lengths)) == (7, 29)
    frames = torch.cat(splits.train.values)[:, :12]  # without the time
    torch.testing.assert_close(frames.mean(0), torch.zeros(12), atol=1e-4, rtol=0)
    torch.testing.assert_close(frames.std(0), torch.ones(12), atol=1e-3, rtol=0)
    held_out = {tuple(series[0].tolist()) for series in splits.valid.values}
    assert not held_out & {tuple(series[0].tolist()) for series in splits.train.values}


def test_digits_are_split_without_overlap():
    splits = find_task("digits").load(DigitsData(), seed=0)
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (1197, 200, 400)
    assert splits.train.pixels.shape == (1197, 3, 32, 32)
    assert splits.train.pixels.aminmax() == (0, 255)
    other = find_task("digits").load(DigitsData(split=1), seed=0)
    assert not torch.equal(splits.test.target, other.test.target)


def test_digits_are_those_of_scikit_learn():
    # The first image as its documentation prints it, and its classes.
    images = _packaged._read_digits()
    assert (16 * images.pixels[0, :2]).tolist() == [[0, 0, 5, 13, 9, 1, 0, 0], [0, 0, 13, 15, 10, 15, 5, 0]]
    assert images.digit[:10].tolist() == list(range(10))
    assert images.digit.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


GOOD = ":".join(["0.1,0.2"] * 12)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["@data", f"{GOOD}:1", ":".join(["0.1,0.2"] * 11) + ":1"], "line 3: 11 channels"),
        (["@data", ":".join(["0.1,0.2"] * 11 + ["0.1"]) + ":1"], "line 2: channels of different lengths, [1, 2]"),
        (["@data", ":".join(["0.1,nan"] * 12) + ":1"], "are not finite numbers"),
        (["@data", ":".join(["0.1;0.2"] * 12) + ":1"], "are not finite numbers"),
        (["@data", f"{GOOD}:a"], "'a' is no speaker; there are 1, 2, 3"),
        (["@data", f"{GOOD}:0"], "'0' is no speaker"),
        (["@data"], "has no series"),
        ([], "is empty"),
        (["@data", f"{GOOD}:1"], "speaker 1 has 1 training examples"),
    ],
)
def test_damaged_vowels_are_one_line(tmp_path, lines, says):
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"JapaneseVowels_{part}.ts").write_text("\n".join(lines))
    with pytest.raises(LabError, match=re.escape(says)):
        find_task("vowels").load(VowelsData(path=tmp_path), seed=0)


def test_vowels_that_are_not_there(tmp_path):
    with pytest.raises(LabError, match=r"no such file.*JapaneseVowels.*force-reinstall aeon"):
        find_task("vowels").load(VowelsData(path=tmp_path), seed=0)


def test_more_digits_than_there_are():
    with pytest.raises(LabError, match="leave none of 1797 to train"):
        find_task("digits").load(DigitsData(test=1797), seed=0)


@pytest.mark.parametrize(
    ("module", "task", "data", "pip"),
    [("aeon", "vowels", VowelsData(), "aeon"), ("sklearn", "digits", DigitsData(), "scikit-learn")],
)
def test_a_missing_package_is_one_line(monkeypatch, module, task, data, pip):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(LabError, match=f"needs {pip}, which is not installed: pip install {pip}"):
        find_task(task).load(data, seed=0)


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("basis", [GaussianBasis.covering(4), MultivariateGaussianBasis.grid(3, scale=0.3)])
def test_the_head_is_the_one_that_is_recommended(basis):
    attend = Attention("continuous", 8, 2.0, basis).attend
    assert repr(attend) == repr(ContinuousAttention(basis, embed_dim=8))


def test_speakers_are_told_apart(tmp_path):
    words = ["--training.epochs=10", "--training.evaluate_every=5", "--model.functions=8"]
    recipe = load_recipe("vowels/continuous-sparsemax", words)
    results = train(recipe, Run(tmp_path / "run"), test=True)
    assert results["test"]["accuracy"] > 0.85
    assert results["test"]["attended"] < 0.98


# -- from the command to the browser -----------------------------------------------------------------------------------


class Demo(NamedTuple):
    """A demo for one epoch, where two trainings of other keys lay before: its folder, what it printed, the jobs."""

    folder: Path
    printed: str
    asked: list[int]


@contextlib.contextmanager
def few_digits():
    """So many that each of the ten is trained on, held out and drawn; a step and a page are the same with all."""
    digits = _packaged._read_digits()[range(700)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_packaged, "_read_digits", lambda path: digits)
        patch.setattr("contmax_lab.tasks.places._data._VALID", 30)
        patch.setattr("contmax_lab.tasks.places._data._TEST", 30)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder, asked = tmp_path_factory.mktemp("demo"), []
    small = ["--training.epochs=1", "--training.batch_size=0", "--model.hidden_dim=4"]
    left_over = Run(folder / "runs" / "seattle" / "baseline" / "seed-0")
    train(load_recipe("intervals/seattle-midpoint", [*small[1:], "--training.epochs=2"]), left_over)
    unknown = Run(folder / "runs" / "seattle" / "triangular" / "seed-0")
    shutil.copytree(left_over.folder, unknown.folder)
    unknown.config.write_text(unknown.config.read_text().replace("dropout:", "formerly:"))

    def opened(workers):
        asked.append(workers.jobs)
        return Here().open()

    made = {"others": rendered_twice(lambda theme: new_axes()[0])}

    def one_kind(draw):
        """All pictures are drawn; one of the kind that no other test makes into files is, which takes longer."""
        kind = draw.__module__
        if kind in made:
            assert draw(LIGHT).axes
        elif kind == "contmax_lab.labelled._panels":
            made[kind] = rendered_twice(draw)
        else:
            assert 0 < len(draw(LIGHT).axes) == len(draw(DARK).axes)
            made[kind] = made["others"]
        return made[kind]

    with few_digits(), pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(LocalProcesses, "open", opened)
        patch.setattr("contmax_lab.report.rendered_twice", one_kind)
        main(["demo", "--output", str(folder), "--seeds", "1", "--jobs", "3", *small])
    return Demo(folder, printed.getvalue(), asked)


def test_keys_are_changed_for_every_training_and_others_are_forgotten(demo):
    assert demo.asked == [3] * 5
    # A quick look is quick, and what was trained with other keys, or with none that are known, is trained anew.
    results = {path.parent: Run(path.parent).results() for path in demo.folder.glob("runs/*/*/*/results.json")}
    assert {demo.folder / "runs" / "seattle" / row / "seed-0" for row in ("baseline", "triangular")} <= {*results}
    assert {found["epochs"] for found in results.values()} == {1}


@pytest.mark.parametrize("name", KINDS)
def test_every_recipe_takes_a_step(demo, name):
    task, _, variant = name.partition("/")
    with few_digits():
        trained = open_trained(demo.folder / "runs" / task / variant / "seed-0")
    results = trained.results
    assert results["steps"] == 1
    recipe = load_recipe(name)
    assert (trained.recipe.model.attention, trained.recipe.model.alpha) == (recipe.model.attention, recipe.model.alpha)
    with torch.no_grad():
        batch = trained.task.batch(trained.splits.test, range(len(trained.splits.test)))
        output = trained.model(batch)
    assert results["test"]["accuracy"] == pytest.approx(
        float((output.scores.argmax(-1) == batch["target"]).float().mean())
    )
    assert (results["test"]["attended"] == 1) == ("softmax" in name)


def test_what_is_printed_and_what_lies_in_the_folder(demo):
    for words in (
        "Where is the speech?",
        "Where is the digit?",
        "IoU",
        "Who speaks?",
        "Which digit?",
        "How warm tomorrow?",
        "Combined sparsemax",
        "Triangular",
        "report.html",
    ):
        assert words in demo.printed
    # Brackets are around the words that the travelling model attends to.
    assert re.search(r"\[[a-z ,.:]+", demo.printed[demo.printed.index("in brackets") :])
    pictures = sorted(path.name for path in demo.folder.glob("*.png"))
    assert len(pictures) == 10 + len(EXAMPLES)
    assert {"the-true-interval-and-the-attended-one.png", "the-true-box-and-the-attended-region.png"} <= {*pictures}
    text = (demo.folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href|srcset)=\"(?!data:|#)", text)


@needs_chromium
def test_the_report_in_a_browser(demo, chromium, left_pages):
    pictures = [*demo.folder.glob("*.png")]
    screens = {"light": PHONE, "dark": PHONE, "large": {"width": 1280, "height": 720}}
    report = demo.folder / "report.html"
    seen = {name: look_at(chromium, left_pages, report, name, size) for name, size in screens.items()}
    # The kinds of attention above; below, sentences of others, and four lines on how the page was made.
    rows = 5 + sum(len(table.rows) for _, table in demo_tables()) + len(EXAMPLES) + 4
    for name in screens:
        assert seen[name]["complaints"] == []
        assert seen[name]["requests"] == []
        assert len(seen[name]["widths"]) == len(pictures)
        assert min(seen[name]["widths"]) > 300
        assert seen[name]["rows"] == rows
        assert not seen[name]["overflow"]
    assert seen["light"]["background"] != seen["dark"]["background"]
    assert not {*seen["light"]["sources"]} & {*seen["dark"]["sources"]}


def look_at(browser, left_pages, page_file, name, size):
    """What a screen shows."""
    visits = Visits(browser, left_pages)
    scheme = "dark" if name == "dark" else "light"
    page = visits.open(page_file.as_uri(), color_scheme=scheme, viewport=size)
    images = page.locator("img")
    seen = {
        "widths": images.evaluate_all("images => images.map(image => image.naturalWidth)"),
        "sources": images.evaluate_all("images => images.map(image => image.currentSrc)"),
        "rows": page.locator("tbody tr").count(),
        "overflow": page.evaluate("document.documentElement.scrollWidth > window.innerWidth"),
        "background": page.evaluate("getComputedStyle(document.body).backgroundColor"),
    }
    visits.leave()
    asked = [url for url in visits.requests if not url.startswith(("file:", "data:"))]
    return {**seen, "complaints": visits.complaints, "requests": asked}

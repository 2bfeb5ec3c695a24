"""Images of the user's own: from folders or a table to a run, an answer and a report."""

import os
import random
import re

import numpy as np
import pytest
from own_data import learns, pictures
from PIL import Image

from contmax_lab.cli import main
from contmax_lab.data import pixels
from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe, open_trained, shipped_recipes
from contmax_lab.tasks.images import ImagesData
from contmax_lab.tasks.images._task import TASK

VARIANTS = [name for name in shipped_recipes() if name.startswith("images/")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Pictures and a run."""
    folder = tmp_path_factory.mktemp("images")
    pictures(folder / "pictures")
    short = ("--training.epochs=8", "--training.batch_size=8", "--training.learning_rate=0.005", "--data.size=24")
    small = ("--model.hidden_dim=16", "--model.layers=2", "--model.functions=4")
    main(["train", "images", "--data.train", str(folder / "pictures"), *short, *small, "--folder", str(folder / "run")])
    return folder


def test_shapes_are_learned(folder):
    trained = open_trained(folder / "run")
    assert trained.results["valid"]["accuracy"] > 0.85
    assert trained.splits.info["classes"] == ("box", "disc")


def test_predict_answers_an_image(folder, contmax, tmp_path):
    picture = folder / "pictures" / "disc" / "3.png"
    code, out, _ = contmax("predict", folder / "run", picture, "--figure", tmp_path / "a.png")
    assert code == 0
    assert re.fullmatch(r"disc \(\d+%\), box \(\d+%\)\nattended: \d+% of the image\ndrawn into .*\n", out), out
    (tmp_path / "broken.png").write_bytes(picture.read_bytes()[:60])
    for words in ([tmp_path / "broken.png"], [tmp_path / "none.png"], [tmp_path], ["a", "b"]):
        code, _, complaint = contmax("predict", folder / "run", *words)
        assert (code > 0, len(complaint)) == (True, 1)


@pytest.mark.usefixtures("sketched")
def test_report_shows_where_it_looks(folder, contmax, tmp_path):
    code, _, errors = contmax("report", folder / "run", "--output", tmp_path / "report.html")
    assert (code, errors) == (0, [])
    assert list(tmp_path.rglob("where-the-models-look-in-images*.png"))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_gives_finite_losses_and_gradients(folder, name):
    keys = [f"--data.train={folder / 'pictures'}", "--data.limit=12", "--data.size=20", "--model.hidden_dim=8"]
    recipe = load_recipe(name, [*keys, "--model.functions=3"])
    _, output, _ = learns(recipe, 4)
    assert output.inside.any(-1).all()


# -- data --------------------------------------------------------------------------------------------------------------


def test_a_table_of_files_is_the_same_as_folders(folder):
    root = folder / "pictures"
    found = [(kind, path) for kind in ("box", "disc") for path in sorted((root / kind).iterdir())]
    lines = [f"{path.relative_to(folder)}\t{kind}" for kind, path in found]
    (folder / "files.tsv").write_text("\n".join(["file\tlabel", *lines]))
    one, two = (TASK.load(ImagesData(train=train, size=16), 0) for train in (root, folder / "files.tsv"))
    assert (one.train.pixels == two.train.pixels).all()
    assert one.valid.names == two.valid.names
    assert one.info["classes"] == two.info["classes"]


def test_what_is_no_image_by_its_name_is_left_out(tmp_path):
    pictures(tmp_path / "p", 4)
    (tmp_path / "p" / ".hidden").mkdir()
    (tmp_path / "p" / "README.txt").write_text("x")
    (tmp_path / "p" / "disc" / "Thumbs.db").write_bytes(b"\0")
    (tmp_path / "p" / "disc" / "._1.png").write_bytes(b"\0")
    splits = TASK.load(ImagesData(train=tmp_path / "p", size=8), 0)
    assert len(splits.train) + len(splits.valid) == 8


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16", "I", "F"])
def test_every_kind_of_image_becomes_three_channels(tmp_path, mode):
    ramp = np.linspace(0, 255, 12 * 10).reshape(10, 12)
    # More than 8 bits: a thermal camera's pixels differ by a few per cent of what they are.
    measured = {"I;16": np.uint16, "I": np.int32, "F": np.float32}
    if mode in measured:
        image = Image.fromarray((20_000 + 3 * ramp).astype(measured[mode]))
    else:
        image = Image.fromarray(ramp.astype("uint8")).convert(mode)
    path = tmp_path / "a.tif"
    image.save(path)
    read = pixels(path, 10)
    assert (read.shape, str(read.dtype)) == ((3, 10, 10), "torch.uint8")
    assert read[:, 0].float().mean() < 60 < 190 < read[:, -1].float().mean()


def test_transparent_is_white_and_cameras_are_turned(tmp_path):
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert (pixels(tmp_path / "a.png", 4) == 255).all()
    image = Image.new("L", (8, 8), 0)
    image.paste(255, (0, 0, 8, 4))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "b.png", exif=exif)
    assert pixels(tmp_path / "b.png", 8)[0, :, 0].tolist() == [0] * 4 + [255] * 4


def test_hostile_folders_are_one_line(tmp_path):
    (tmp_path / "none").mkdir()
    pictures(tmp_path / "one", 3)
    (tmp_path / "one" / "empty").mkdir()
    pictures(tmp_path / "bad", 3)
    (tmp_path / "bad" / "disc" / "x.png").write_text("no image")
    # A program that Pillow would hand to Ghostscript.
    pictures(tmp_path / "eps", 3)
    (tmp_path / "eps" / "disc" / "x.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    cases = [("none", "no folders in it"), ("one", "empty: no images"), ("bad", r"disc.x\.png: cannot be read")]
    for name, says in [*cases, ("eps", r"disc.x\.png: cannot be read"), ("nothing.csv", "no such folder or table")]:
        with pytest.raises(LabError, match=says) as caught:
            TASK.load(ImagesData(train=tmp_path / name, size=8), 0)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [b"caf\xe9/0.png", b"cafe/\xe9.png"])
def test_a_name_that_is_not_utf_8_is_one_line(tmp_path, name):
    for path in (b"dog/0.png", name):
        file = tmp_path / os.fsdecode(path)
        file.parent.mkdir()
        Image.new("RGB", (4, 4)).save(file)
    with pytest.raises(LabError, match=r"the name is not UTF-8; rename it"):
        TASK.load(ImagesData(train=tmp_path), 0)


def test_hostile_tables_are_one_line(tmp_path):
    pictures(tmp_path, 3)
    good = [f"{kind}/{i}.png,{kind}" for kind in ("disc", "box") for i in range(3)]
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    for line, says in (
        ("disc/9.png,disc", r"a\.csv, line 8: the image .*9\.png cannot be read: no such file"),
        ("disc/1.png,box", r"a\.csv, line 8: .*1\.png is also in line 3"),
        ("bad.png,box", r"a\.csv, line 8: the image .*bad\.png cannot be read"),
        ("disc,box", r"a\.csv, line 8: the image .*disc cannot be read"),
        (",box", r"a\.csv, line 8: nothing in the column file"),
        ("disc/2.png", r"a\.csv, line 8: 1 fields"),
    ):
        (tmp_path / "a.csv").write_text("\n".join(["file,label", *good, line]))
        with pytest.raises(LabError, match=says):
            TASK.load(ImagesData(train=tmp_path / "a.csv", size=8), 0)


def test_an_image_of_too_many_pixels_is_not_decoded(tmp_path):
    Image.new("1", (20_000, 6_000)).save(tmp_path / "a.png")
    with pytest.raises(LabError, match="smaller"):
        pixels(tmp_path / "a.png", 8)


@pytest.mark.parametrize("kind", ["png", "jpeg", "gif", "tiff", "bmp", "webp"])
def test_damaged_images_are_read_or_one_line(tmp_path, kind):
    path, draw = tmp_path / f"a.{kind}", random.Random(0)
    Image.effect_noise((20, 15), 60).convert("RGB").save(path)
    whole = path.read_bytes()
    assert pixels(path, 8).shape == (3, 8, 8)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(draw.randint(1, 6)):
            damaged[draw.randrange(min(len(damaged), draw.choice([40, 10_000])))] = draw.randrange(256)
        path.write_bytes(damaged[: draw.choice([len(damaged), draw.randrange(len(damaged))])])
        try:
            assert pixels(path, 8).shape == (3, 8, 8)
        except LabError as error:
            assert "\n" not in str(error)  # noqa: PT017

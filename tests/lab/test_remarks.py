"""What data check notes: rare classes, gaps, repetitions, other units, broken images."""

import random

import pytest
from own_data import pictures
from PIL import Image

from contmax_lab.errors import LabError
from contmax_lab.runs import Run
from contmax_lab.tasks.images import ImagesData
from contmax_lab.tasks.images._task import TASK as IMAGES
from contmax_lab.tasks.series import SeriesData
from contmax_lab.tasks.series._task import TASK as SERIES
from contmax_lab.tasks.series.vowels import VowelsData
from contmax_lab.tasks.series.vowels._task import TASK as VOWELS


def table(folder, lines, name="a.csv"):
    path = folder / name
    path.write_text("\n".join(lines))
    return path


def clinic(count=40, heat=37.0, hours=1.0, seed=0, rows=6, age=60, ward="north"):
    draw = random.Random(seed)
    lines = ["id,time,heat,pulse,age,ward,label"]
    for number in range(count):
        own = draw.gauss(age, 5)
        lines += [
            f"{number},{time * hours * (1 + 0.1 * number % 1)},{draw.gauss(heat, 0.7)},{draw.gauss(70, 9)},{own},{ward}"
            f"{number % 2},{'ab'[number % 2]}"
            for time in range(rows)
        ]
    return lines


def remarks(folder, lines=None, **keys):
    data = SeriesData(train=table(folder, lines or clinic(), "train.csv"), static="age,ward", **keys)
    return SERIES.load(data, 0).info["remarks"]


def test_nothing_is_noted_of_good_data(tmp_path):
    assert remarks(tmp_path) == []
    assert remarks(tmp_path, validation=table(tmp_path, clinic(seed=1), "v.csv")) == []
    assert remarks(tmp_path, clinic(count=8, rows=2)) == []
    assert VOWELS.load(VowelsData(), 0).info["remarks"] == []


def changed(lines, column, replace):
    rows = [line.split(",") for line in lines]
    place = rows[0].index(column)
    return [",".join(rows[0])] + [",".join([*row[:place], replace(row), *row[place + 1 :]]) for row in rows[1:]]


def test_gaps_are_counted_by_channel(tmp_path):
    lines = changed(clinic(10), "pulse", lambda row: "" if float(row[1]) > 0 else row[3])
    keys = {"validation": table(tmp_path, clinic(4), "v.csv")}
    assert remarks(tmp_path, lines, **keys) == ["missing cells at the 60 training observations: pulse 50 (83 %)"]
    nothing = changed(clinic(10), "pulse", lambda row: "NA")
    noted = "without any value in training: pulse; leave such channels out, or look for a misprint"
    assert remarks(tmp_path, nothing, **keys) == [noted]


def test_times_are_counted(tmp_path):
    single = [line for number, line in enumerate(clinic(10)) if not 7 <= number <= 11]
    empty = changed(clinic(10), "heat", lambda row: "" if row[0] == "3" else row[2])
    empty = changed(empty, "pulse", lambda row: "" if row[0] == "3" else row[3])
    for lines, says in (
        (single, "with one observation: 1 of 10 series (1); they have no course over time"),
        (empty, "without any observation: 1 of 10 series (3); static columns alone tell these apart"),
        (
            [*clinic(10), clinic(10)[1]],
            "one time stamp has several values of a channel, in 1 of 10 series (0); their mean",
        ),
        ([*clinic(10), *clinic(10)[1:3]], "2 time stamps have several values of a channel, in 1 of 10 series (0)"),
    ):
        (noted,) = remarks(tmp_path, lines)
        assert noted.startswith(says)


@pytest.mark.parametrize("part", ["validation", "test"])
def test_other_units_are_noted(tmp_path, part):
    fahrenheit = clinic(heat=98.6, seed=1)
    for lines, says in (
        (fahrenheit, f"heat is on another scale in {part}: mean 98.63, but 36.99 ± 0.7"),
        (
            changed(clinic(seed=1), "pulse", lambda row: str(float(row[3]) / 1000)),
            f"pulse is on another scale in {part}",
        ),
        (
            clinic(hours=60, seed=1),
            f"series last 435 in {part}, but 7.25 in training (medians); are the times in one unit?",
        ),
        (changed(clinic(seed=1), "heat", lambda row: ""), f"heat has no value in {part}, but in training"),
        (clinic(age=60 * 12, seed=1), f"the static column age is on another scale in {part}: mean 7"),
        (clinic(ward="south", seed=1), f"the static column ward of {part} has 'south0', 'south1', which no training"),
        (changed(clinic(seed=1), "age", lambda row: ""), f"the static column age has no value in {part}"),
    ):
        keys = {"validation": table(tmp_path, clinic(seed=2), "v.csv"), part: table(tmp_path, lines, "other.csv")}
        (noted,) = remarks(tmp_path, **keys)
        assert noted.startswith(says), noted


def test_nothing_is_noted_of_a_value_that_does_not_vary_in_validation(tmp_path):
    """Other units do not make a channel constant: a device that is always on, an event too rare for the few."""
    for column, rows in (("pulse", 1), ("age", 6)):  # a static column has one value in the six rows of a series
        lines, validation = (changed(clinic(seed=seed), column, lambda row: "7.3") for seed in (0, 1))
        rare = [line.replace(",7.3,", ",7.4,") if number <= rows else line for number, line in enumerate(lines)]
        for train in (lines, rare):
            assert remarks(tmp_path, train, validation=table(tmp_path, validation, "v.csv")) == []


def test_a_channel_that_is_static_is_noted(tmp_path):
    data = SeriesData(train=table(tmp_path, changed(clinic(), "ward", lambda row: row[0])), static=["age"])
    (noted,) = SERIES.load(data, 0).info["remarks"]
    assert noted.startswith("with one value in each series: ward; ")
    assert noted.endswith("pass --data.static age,ward")


def test_rare_classes_are_noted_with_advice_by_check_and_train(tmp_path, contmax):
    lines = [f"{text},{label}" for label, count in (("ill", 12), ("well", 108)) for text in ["some words"] * count]
    path = table(tmp_path, ["text,label", *lines])
    advice = (
        "note: classes are imbalanced: ill has 11 of 108 training examples, well has 97; who always answers well is"
    )
    for command in (["data", "check"], ["train"]):
        words = ["--training.epochs=1", "--folder", tmp_path / "run"] if command == ["train"] else []
        code, out, errors = contmax(*command, "texts", "--data.train", path, *words)
        assert (code, errors) == (0, [])
        assert any(line.startswith(advice) for line in out.splitlines()), out
    assert Run(tmp_path / "run").results()["remarks"][0].startswith("classes are imbalanced")


# -- broken images -----------------------------------------------------------------------------------------------------


def broken(folder, count=1):
    pictures(folder, 12)
    for number in range(count):
        # Of the first class, so that labels that are not skipped as well would be those of other images.
        (folder / "box" / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return folder


def test_broken_images_are_skipped_counted_and_named(tmp_path, contmax):
    data = {"train": broken(tmp_path / "p", 3), "size": 8}
    with pytest.raises(
        LabError, match=r"box.\d\.png: cannot be read: .*; to leave out .* pass --data\.skip_broken true"
    ):
        IMAGES.load(ImagesData(**data), 0)
    splits = IMAGES.load(ImagesData(**data, skip_broken=True), 0)
    assert len(splits.train) + len(splits.valid) == 21
    assert splits.info["targets"].counts == tuple((splits.train.target == label).sum().item() for label in (0, 1))
    whole = pictures(tmp_path / "whole", 12)
    for part in (splits.train, splits.valid):
        assert part.pixels.shape[0] == len(part.target) == len(part.names)
        for image, label, name in zip(part.pixels, part.target, part.names, strict=True):
            file = whole / ("box", "disc")[label] / name
            expected = Image.open(file).convert("RGB").resize((8, 8), Image.Resampling.BILINEAR)
            assert image.permute(1, 2, 0).numpy().tobytes() == expected.tobytes()
    (noted,) = splits.info["remarks"]
    assert noted.startswith("3 broken images were skipped: ")
    assert all(f"{number}.png: cannot be read" in noted for number in range(3))
    code, out, errors = contmax("data", "check", "images", "--data.train", tmp_path / "p", "--data.skip_broken", "true")
    assert (code, errors) == (0, [])
    assert "\nnote: 3 broken images were skipped: " in out


def test_many_broken_images_are_named_in_part(tmp_path):
    (noted,) = IMAGES.load(ImagesData(train=broken(tmp_path / "p", 8), size=8, skip_broken=True), 0).info["remarks"]
    assert noted.startswith("8 broken images were skipped: ")
    assert noted.endswith("; and 3 more")


def test_a_class_or_a_part_of_broken_images_is_one_line(tmp_path):
    lost = {"train": broken(tmp_path / "p", 12), "size": 8, "skip_broken": True}
    with pytest.raises(LabError, match="every training image of the class box is broken; mend one"):
        IMAGES.load(ImagesData(**lost), 0)
    (tmp_path / "t" / "disc").mkdir(parents=True)
    (tmp_path / "t" / "disc" / "x.png").write_text("no image")
    with pytest.raises(
        LabError, match=r"all images of a part of the data, 1, are broken, e\.g\. .*x\.png: cannot be read"
    ):
        IMAGES.load(ImagesData(train=pictures(tmp_path / "q", 4), test=tmp_path / "t", size=8, skip_broken=True), 0)


def test_a_missing_file_of_a_table_is_skipped_too_but_not_a_missing_package(tmp_path, monkeypatch):
    pictures(tmp_path, 4)
    lines = [f"{kind}/{number}.png,{kind}" for kind in ("disc", "box") for number in range(5)]
    data = ImagesData(train=table(tmp_path, ["file,label", *lines]), size=8, skip_broken=True)
    (noted,) = IMAGES.load(data, 0).info["remarks"]
    assert noted.startswith("2 broken images were skipped: ")
    assert "a.csv, line 6: the image " in noted

    def missing(*arguments):
        raise LabError("Reading images needs pillow, which is not installed: pip install pillow")

    monkeypatch.setattr("contmax_lab.data._pixels.require", missing)
    with pytest.raises(LabError, match="pip install pillow"):
        IMAGES.load(data, 0)

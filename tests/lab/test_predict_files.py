"""All inputs of a file are answered, one that cannot be read is named, and a name of a file is no text."""

import csv
import io
import itertools
import json

import pytest
import torch
from own_data import HEADER, pictures, sensors

from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax_lab.attention import Attended
from contmax_lab.contract import FileAnswer, Splits
from contmax_lab.errors import CannotWrite, LabError
from contmax_lab.files import written_aside
from contmax_lab.labelled import Targets, attended_box, attended_interval, table_inputs
from contmax_lab.registry import find_task
from contmax_lab.tasks.images import ImagesModel
from contmax_lab.tasks.series import SeriesData, SeriesModel
from contmax_lab.tasks.texts import TextsModel


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def fresh(name, model, **info):
    """A task, and a network of it with fresh weights."""
    task = find_task(name)
    targets = Targets(("no", "yes"))
    info = {"targets": targets, "classes": targets.classes, **info}
    torch.manual_seed(0)
    return task, task.build(model, Splits((), (), (), info)).eval(), info


def reader(**model):
    sizes = {"max_length": 9, "vector_width": 0}
    settings = TextsModel(hidden_dim=4, functions=4, **model)
    return fresh("texts", settings, words=["good", "bad"], sizes=sizes, of_table={"column": "review"})


def test_texts_are_answered_in_order_as_each_is_alone_and_broken_ones_are_named(tmp_path):
    path = tmp_path / "new.csv"
    path.write_bytes(b'id,review\n1,good bad\n2,\n3,"bad\nfilm"\n4\n\xff,x\n5,good film it was\n')
    task, model, info = reader()
    found = list(task.predict_file(model, info, path, keep=["id"]))
    assert [answer.name["line"] for answer in found] == [2, 3, 4, 6, 7, 8]
    assert [answer.name.get("id") for answer in found] == ["1", "2", "3", None, None, "5"]
    assert [answer.problem for answer in found] == [
        "", "line 3: nothing in the column review", "", "line 6: 1 fields where the header has 2",
        "line 7: byte 0xff is not UTF-8; convert the file, e.g. iconv -f latin1 -t utf-8", "",
    ]  # fmt: skip
    for answer in found:
        if not answer.problem:
            alone = task.ask(model, info, [answer.name["review"]])
            best, share = answer.told["prediction"], answer.told["probability"]
            assert alone.text.startswith(f"{best} ({share:.0%})")
            assert f"words: {answer.told['attended words']}\n" in f"{alone.text}\n"
            assert answer.told["p(no)"] + answer.told["p(yes)"] == pytest.approx(1)
            assert 1 <= answer.told["first word"] <= answer.told["last word"] <= 4
    with pytest.raises(LabError, match=r"no column body among .*--column"):
        list(task.predict_file(model, info, path, column="body"))


def test_several_heads_and_discrete_attention_have_their_columns(tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text('{"review": "good"}\n')
    task, model, info = reader(heads=2, alpha=1.0)
    (answer,) = task.predict_file(model, info, path)
    assert [name for name in answer.told if "head" in name] == [
        "first word, head 1", "last word, head 1", "first word, head 2", "last word, head 2",
    ]  # fmt: skip
    task, model, info = reader(attention="discrete")
    (answer,) = task.predict_file(model, info, path)
    assert "first word" not in answer.told


def test_what_is_written_is_read_again_cell_by_cell(tmp_path):
    from contmax_lab.cli._predict import _write

    path = tmp_path / "new.csv"
    path.write_bytes(b'prediction,review\n1,"good\rfilm"\n2,"bad\nsch\xf6n\nthird, line"\n3,good\n')
    task, model, info = reader()
    found = list(task.predict_file(model, info, path, keep=["prediction"]))
    written = io.StringIO()
    assert _write(iter(found), written, ".csv") == 3
    first, second, third = csv.DictReader(io.StringIO(written.getvalue(), newline=""))
    # A column of the table that is called as one of the answer is not lost.
    assert [row["prediction, given"] for row in (first, second, third)] == ["1", "", "3"]
    assert (first["review"], first["prediction"]) == ("good\rfilm", found[0].told["prediction"])
    # What follows a line that cannot be read in a quoted cell is no row.
    assert second["problem"].startswith("line 3: in line 4: byte 0xf6 is not UTF-8")
    assert third["line"] == "6"


def test_a_file_of_answers_is_complete_or_as_it_was(tmp_path):
    path, beginning = tmp_path / "a" / "answers.csv", tmp_path / "a" / "answers.csv.partial"

    def write(text, error=None):
        with written_aside(path) as file:
            file.write(text)
            if error:
                raise error

    write("old")
    with pytest.raises(LabError, match=r"^no column$"):
        write("", LabError("no column"))
    assert not beginning.exists()
    with pytest.raises(KeyboardInterrupt):
        write("half", KeyboardInterrupt())
    assert beginning.read_text() == "half"
    with pytest.raises(LabError, match=r"cut; what was written before is in .*partial$"):
        write("most", LabError("cut"))
    # An error of a file that is read is not said of the one that is written.
    with pytest.raises(FileNotFoundError, match="other"):
        write("", FileNotFoundError(2, "no such file", "other.csv"))
    with pytest.raises(CannotWrite, match=r"cannot write .*answers\.csv: No space"):
        write("", OSError(28, "No space left on device"))
    assert path.read_text() == "old"
    write("new")
    assert [(found.name, found.read_text()) for found in path.parent.iterdir()] == [("answers.csv", "new")]


def test_a_file_is_read_as_it_is_answered(tmp_path):
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("review\n" + "good\n" * 100_000)
    read = 0

    def counted(row):
        nonlocal read
        read += 1
        return ["good"]

    inputs = table_inputs(path, "review", (), counted)
    assert len(list(itertools.islice(inputs, 3))) == read == 3


def test_series_come_when_their_last_line_was_read(tmp_path):
    trained = sensors(tmp_path / "sensors.csv", 12)
    splits = find_task("series").load(SeriesData(train=trained), 0)
    task, model, info = fresh("series", SeriesModel(hidden_dim=4, functions=4), scale=splits.info["scale"])
    lines = [
        ",".join([*HEADER[:4]]),
        "a,1,0,20",
        "b,1,0,20",
        "a,2,1,21",
        "b,2,x,21",
        "a,4,,",
        ",9,1,1",
        "c,7,0,3",
        "a,5,1,1",
    ]
    path = tmp_path / "new.csv"
    path.write_text("\n".join(lines))
    found = {answer.name["machine"]: answer for answer in task.predict_file(model, info, path)}
    assert [*found] == ["b", "", "c", "a"]
    assert found["b"].problem.startswith("line 5: level is 'x', which is not a number")
    assert found[""].problem == "line 7: nothing in the column machine"
    told = found["a"].told
    assert 1 <= float(told["from"]) < float(told["to"]) <= 5
    assert task.holds_many(path, info)
    path.write_text("\n".join([lines[0], *lines[1:4:2]]))
    assert not task.holds_many(path, info)
    alone = task.ask(model, info, [str(path)])
    (again,) = task.predict_file(model, info, path)
    assert alone.text.startswith(f"{again.told['prediction']} ({again.told['probability']:.0%})")


def test_series_tell_which_static_columns_were_not_found(tmp_path):
    """They may stand with the labels in training, and a file of new series has none; variables too may be others."""
    values, people, new = (tmp_path / name for name in ("values.csv", "people.csv", "new.csv"))
    header = "id,time,variable,value"
    rows = [f"{series},{time},heat,{series + time}" for series in range(8) for time in range(3)]
    values.write_text("\n".join([header, *rows]))
    people.write_text("\n".join(["id,age,sex,label", *(f"{n},{60 + n},{'mf'[n % 2]},{'ab'[n % 2]}" for n in range(8))]))
    splits = find_task("series").load(SeriesData(train=values, labels=people, static="age,sex"), 0)
    task, model, info = fresh("series", SeriesModel(hidden_dim=4, functions=4), scale=splits.info["scale"])
    new.write_text(
        "\n".join([header, "p,1,heat,3", "p,1,age,61", "q,1,heat,3", "q,1,age,61", "q,1,sex,m", "q,1,mood,9"])
    )
    told = {answer.name["id"]: answer.told["not known"] for answer in task.predict_file(model, info, new)}
    assert told == {"p": "sex", "q": ""}
    new.write_text("\n".join([header, "p,1,Heat,3", "p,1,age,61", "q,1,mood,3"]))
    with pytest.raises(LabError, match=r"new\.csv has no value of heat; the column variable has Heat, mood\."):
        next(task.predict_file(model, info, new))


def test_images_of_a_folder_and_of_a_table(tmp_path):
    folder = pictures(tmp_path / "pictures", 2)
    (folder / "disc" / "broken.png").write_bytes(b"no image")
    task, model, info = fresh("images", ImagesModel(hidden_dim=8), size=32)
    found = list(task.predict_file(model, info, folder))
    assert [answer.name["file"] for answer in found] == [
        "box/0.png", "box/1.png", "disc/0.png", "disc/1.png", "disc/broken.png",
    ]  # fmt: skip
    assert "broken.png: cannot be read: it is not an image" in found[-1].problem
    box = [found[0].told[side] for side in ("top", "left", "bottom", "right")]
    assert 0 <= box[0] < box[2] <= 1
    assert 0 <= box[1] < box[3] <= 1
    (tmp_path / "new.csv").write_text("file\npictures/box/1.png\npictures/none.png\n")
    first, second = task.predict_file(model, info, tmp_path / "new.csv")
    assert first.told["prediction"] == found[1].told["prediction"]
    assert first.told["p(no)"] == pytest.approx(found[1].told["p(no)"], rel=1e-5)
    assert "none.png cannot be read: no such file" in second.problem


def test_the_interval_and_the_box_are_those_of_the_support_or_hold_nine_tenths():
    line = BetaGaussian.from_support(torch.tensor([0.2]), torch.tensor([0.5]), 2.0)
    low, high = attended_interval(Attended(torch.zeros(1, 1), density=line))
    assert (float(low), float(high)) == pytest.approx((0.2, 0.5), abs=1e-5)
    bell = BetaGaussian(torch.tensor([0.5]), torch.tensor([0.1]), 1.0)
    low, high = attended_interval(Attended(torch.zeros(1, 1), density=bell))
    assert float(bell.cdf(high) - bell.cdf(low)) == pytest.approx(0.9, abs=1e-4)
    shape = torch.tensor([[[0.04, 0.01], [0.01, 0.09]]])
    plane = MultivariateBetaGaussian.from_support(torch.tensor([[0.4, 0.5]]), shape, 2.0)
    box = attended_box(Attended(torch.zeros(1, 1), density=plane))
    assert box[0].tolist() == pytest.approx([0.2, 0.2, 0.6, 0.8], abs=1e-5)
    round_bell = MultivariateBetaGaussian(torch.tensor([[0.5, 0.5]]), 0.01 * torch.eye(2)[None], 1.0)
    box = attended_box(Attended(torch.zeros(1, 1), density=round_bell))
    inside = (round_bell.sample((20_000,))[:, 0] - 0.5).norm(dim=-1) < float(box[0, 2] - 0.5)
    assert float(inside.float().mean()) == pytest.approx(0.9, abs=0.01)


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_model_of_the_package_answers_a_file(contmax, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("id,body\n7,A wonderful film.\n8,\n9,A dreadful bore.\n")
    code, out, errors = contmax("predict", "new.csv", "--column", "body", "--keep", "id", "--into", "a/b.csv")
    assert (code, out, len(errors)) == (1, "2 answers in a/b.csv\n", 1)
    assert "1 of 3 inputs have no answer: line 3: nothing in the column body" in errors[0]
    rows = list(csv.DictReader((tmp_path / "a" / "b.csv").read_text().splitlines()))
    assert [(row["id"], row["prediction"], bool(row["problem"])) for row in rows] == [
        ("7", "positive", False), ("8", "", True), ("9", "negative", False),
    ]  # fmt: skip
    assert contmax("predict", "new.csv", "--column", "body", "--into", "b.jsonl")[0] == 1
    assert [len(json.loads(line)) > 3 for line in (tmp_path / "b.jsonl").read_text().splitlines()] == [
        True,
        False,
        True,
    ]
    code, out, _ = contmax("predict", "new.csv", "--column", "body")
    assert (code, len(out.splitlines())) == (1, 4)
    (tmp_path / "one.txt").write_text("\ufeffA wonderful film.")
    assert contmax("predict", "one.txt")[1] == contmax("predict", "A wonderful film.")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nw.csv"], "nw.csv: there is no such file; did you mean new.csv?"),
        (["my reviews.csv"], "my reviews.csv: there is no such file; to ask about these words, pass them by -"),
        (["data/reviews"], "data/reviews: there is no such file"),
        (["."], ". is a folder"),
        (["new.csv"], "no column text among 'body'; name the column of the inputs by --column"),
        (["A good film.", "--into", "a.csv"], "--into, --column and --keep are for a file with many inputs"),
        (["new.csv", "--into", "a.xlsx"], "the name must end in .csv, .tsv, .jsonl, .ndjson"),
        (["new.csv", "--into", "new.csv"], "is the file of the inputs"),
        (["new.csv", "--figure", "a.png"], "--figure draws the answer to one input"),
    ],
)
def test_what_is_no_input_is_one_line(contmax, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text("body\nA wonderful film.\n")
    code, _, errors = contmax("predict", *words)
    assert code in (1, 2)
    assert len(errors) == 1
    assert says in errors[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv"]


def test_a_file_of_nothing_but_broken_rows_ends_soon():
    from contmax_lab.cli._predict import _write

    answers = (FileAnswer({"line": line}, problem="no words") for line in itertools.count(2))
    with pytest.raises(LabError, match=r"none of the first 1,000 inputs can be read, e\.g\. no words"):
        _write(answers, None, ".csv")

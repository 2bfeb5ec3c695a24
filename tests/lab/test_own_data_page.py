"""The page "Your own data": every command of it, on small data; and models that leave the laboratory."""

import contextlib
import gzip
import json
import re
import shlex
from pathlib import Path

import pytest
from own_data import TELLING, pictures, reviews, sensors
from sentences import pairs

PAGE = Path(__file__).parents[2] / "docs" / "your-own-data.md"
RUNS = {"texts": "A superb day in town.", "series": "new.csv", "images": "new.png"}


def blocks(language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for kind, text in found if kind == language]


def commands():
    return [line for block in blocks() for line in block.splitlines()]


def write_data(folder):
    """The files that the page names, and those that it makes."""
    with contextlib.chdir(folder):
        exec("".join(blocks("python")), {})
    reviews(folder / "reviews.csv", count=120)
    lines = sensors(folder / "sensors.csv", count=30).read_text().splitlines()
    own = [line.rpartition(",")[0] for line in lines if line.startswith(("machine,", "4,"))]
    (folder / "new.csv").write_text("\n".join(own))
    pictures(folder / "pictures", count=6)
    reviews(folder / "more.csv", count=4)
    sensors(folder / "more-sensors.csv", count=3)
    (folder / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs(60, 0)))
    (folder / "sentences.txt").write_text("eins zwei.\nzwei eins.\n")
    (folder / "new.png").write_bytes((folder / "pictures" / "disc" / "0.png").read_bytes())
    with gzip.open(folder / "vectors.txt.gz", "wt", encoding="utf-8") as file:
        for number, word in enumerate([word for words in TELLING.values() for word in words]):
            file.write(f"{word} {number} 0.5 -1\n")


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_data(folder)
    return folder


@pytest.fixture
def inside(here, monkeypatch):
    monkeypatch.chdir(here)
    return here


@pytest.mark.usefixtures("sketched", "trained_here")
def test_every_command_of_the_page_works(inside, contmax):
    said = {}
    for line in commands():
        _, command, *words = shlex.split(line)
        # So little is enough to see that it works.
        epochs = 3 if "--resume" in words else 2
        of_words = [f"--model.{part}_dim=8" for part in ("embedding", "encoder", "decoder")]
        small = of_words if "translation/own" in words else ["--model.hidden_dim=8"]
        quick = {
            "train": [f"--training.epochs={epochs}", *small],
            "report": ["--examples", "1"],
            "search": ["--training.epochs=1"],
        }.get(command, [])
        code, printed, errors = contmax(command, *words, *quick)
        assert (code, errors if command != "search" else []) == (0, []), line
        said[command] = [*said.get(command, []), printed]
    assert {name: len(answers) for name, answers in said.items()} == {
        "train": 9, "predict": 10, "report": 4, "data": 2, "export": 1, "search": 1,
    }  # fmt: skip
    assert all("stored in runs/" in answer for answer in said["train"])
    written = {"translations.csv": 2, "outcomes.csv": 60, "answers.csv": 4, "answers.jsonl": 3, "images.csv": 12}
    for answer in said["predict"]:
        assert "attended" in answer or any(f"answers in {name}" in answer for name in written) or "\n\n" in answer
    for name, count in written.items():
        lines = Path(name).read_text().splitlines()
        assert len(lines) >= count + (not name.endswith("l"))
        assert "translation" in lines[0] or ('"p(ok)"' if name.endswith("l") else "probability,p(") in lines[0]
    assert (
        "train with its settings: contmax train texts/continuous-sparsemax --data.train=reviews.csv"
        in said["search"][0]
    )
    checked, of_texts = said["data"]
    assert of_texts == "train 108, valid 12, test 0 examples\nclasses: 1, 3, 5\nvocabulary: 27\n"
    assert checked.startswith(
        "train 48, valid 12, test 0 examples\nclasses: ill, well\ncolumns: series patient_id, time"
    )
    assert re.search(r"\nnote: missing cells at the 9\d\d training observations: pulse \d+ \(8\d %\)\n", checked), (
        checked
    )
    assert "\nnote: classes are imbalanced: ill has 8 of 48 training examples" in checked
    assert "goes on after epoch 2, now up to epoch 3; training.schedule cosine" in said["train"][-1]
    assert list(inside.glob("report/*.png"))


@pytest.mark.parametrize("task", RUNS)
def test_an_exported_model_answers_as_its_run_does_without_the_data(inside, contmax, task):
    run, asked = f"runs/{task}/continuous-sparsemax-seed-0", RUNS[task]
    code, answer, errors = contmax("predict", run, asked)
    assert (code, errors) == (0, [])
    code, printed, _ = contmax("export", run, "--into", f"exported-{task}")
    assert code == 0
    assert re.fullmatch(rf"0\.\d\d MB in exported-{task}\n", printed)
    folder = inside / f"exported-{task}"
    card = json.loads((folder / "config.json").read_text())
    assert card["task"] == task
    assert card["figures"].keys() == {"valid"}
    assert str(inside) not in json.dumps(card)
    moved = [(path, path.with_name(f"gone-{path.name}")) for path in map(Path, ("reviews.csv", "sensors.csv"))]
    for path, away in moved:
        path.rename(away)
    try:
        # Weights are rounded to float16: a percentage may change by one.
        again = contmax("predict", "--model", folder, asked, "--figure", "where.png")[1]
    finally:
        for path, away in moved:
            away.rename(path)
    numbers = [[int(number) for number in re.findall(r"\d+", text)] for text in (answer, again)]
    assert numbers[1][: len(numbers[0])] == pytest.approx(numbers[0], abs=1)
    assert Path("where.png").read_bytes().startswith(b"\x89PNG")


def test_a_model_that_began_with_vectors_is_exported_too(inside, contmax):
    assert contmax("export", "runs/with-vectors", "--into", "with-vectors")[0] == 0
    answer = contmax("predict", "--model", "with-vectors", "superb")[1]
    assert answer.splitlines()[0].count("%") == 3


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda card: "no JSON", "holds no model that can be read"),
        (lambda card: json.dumps({**card, "known": {}}), "holds no model of the task images: 'targets'"),
        (lambda card: json.dumps({**card, "model": {"hidden_dim": 9}}), "model.safetensors does not fit config.json"),
        (lambda card: json.dumps({**card, "model": {"depth": 9}}), "there is no setting model.depth"),
        (lambda card: json.dumps({**card, "task": "os:system"}), "there is no task 'os:system'"),
        (lambda card: json.dumps({**card, "task": 7}), "there is no task '7'"),
        (lambda card: json.dumps([]), "holds no model that can be read"),
    ],
)
def test_a_damaged_model_folder_is_one_line(inside, contmax, tmp_path, damage, says):
    contmax("export", "runs/images/continuous-sparsemax-seed-0", "--into", tmp_path)
    card = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(damage(card))
    code, printed, errors = contmax("predict", "--model", tmp_path, "new.png")
    assert (printed, len(errors)) == ("", 1)
    assert code in (1, 2)
    assert says in errors[0]
    (tmp_path / "config.json").write_text(json.dumps(card))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    code, _, errors = contmax("predict", "--model", tmp_path, "new.png")
    assert (code, len(errors)) == (1, 1)

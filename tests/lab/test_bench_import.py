"""The suite of imports: what it times, and that a slow import misses its target."""

import pytest

from contmax_lab.bench import QUICK, SUITES, _import


def test_an_import_that_takes_long_misses_its_target(monkeypatch):
    seconds = {"import contmax": 0.01, "import contmax; contmax.sparsemax": 0.2}
    monkeypatch.setattr(_import, "_seconds", lambda program: (1.5, seconds.get(program, 0.3)))
    figures = {figure.row: figure for figure in _import._figures(QUICK)}
    assert figures["import torch"].value == 1.5
    assert figures["import contmax"].reached is True
    assert figures["first use of contmax.sparsemax"].reached is False
    assert (figures["every part"].value, figures["every part"].reached) == (0.3, None)


def test_only_what_comes_after_torch_is_counted(monkeypatch):
    by_torch, then = _import._seconds("import contmax; contmax.sparsemax")
    assert by_torch > then > 0
    monkeypatch.setattr(_import, "_TIMED", "{program}")  # it fails as well without torch, and sooner
    with pytest.raises(Exception, match="no_such_module"):
        _import._seconds("import no_such_module")


def test_the_suite_is_known():
    assert _import.IMPORT in SUITES

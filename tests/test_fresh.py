"""Programs in interpreters of their own: one that hangs is ended, and the next one runs."""

import pytest

import fresh
from fresh import Program, run_each


def test_a_program_that_hangs_is_ended_and_the_next_one_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(fresh, "_LIMIT", 1)
    hangs, says = (Program("program.py", source, tmp_path) for source in ("import time; time.sleep(99)", "print(7)"))
    with pytest.raises(AssertionError, match=r"no process to copy for program\.py"):
        run_each([hangs], imports=())
    monkeypatch.setattr(fresh, "_LIMIT", 60)
    assert run_each([says], imports=())[0].printed == "7\n"

"""The fuzzer finds what it should, and every target of it runs."""

import pytest
from fuzz.__main__ import main
from fuzz._campaign import TARGETS, Target, as_table, attack
from fuzz._oracles import entmax_row
from hypothesis import strategies as st


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_holds_for_one_example(name):
    outcome = attack(TARGETS[name], seconds=60, seed=0, examples=1)
    assert outcome.finding is None, outcome.finding
    assert outcome.examples == 1
    assert outcome.rows > 0


def test_a_fault_is_reported_with_its_smallest_example_and_the_way_to_it(capsys, monkeypatch):
    def check(width, alpha):
        assert width < 7, f"{width} is too wide"
        return width

    aim = Target("planted.fault", check, {"width": st.integers(1, 1000), "alpha": st.floats(0, 1)})
    outcome = attack(aim, seconds=60, seed=3)
    assert "7 is too wide" in outcome.finding
    assert "width=7" in outcome.finding
    assert as_table([outcome]).splitlines()[-1].endswith("1")
    monkeypatch.setitem(TARGETS, "planted.fault", aim)
    assert main(["--only", "planted", "--seed", "3"]) == 1
    printed = capsys.readouterr().out
    assert f"--only planted.fault --seed {outcome.seed}" in printed
    assert "width=7" in printed


def test_time_and_number_of_examples_are_limits(capsys):
    aim = Target("nothing.found", lambda width: 1, {"width": st.integers(1, 5)})
    assert attack(aim, seconds=0, seed=0).examples == 0
    assert 0 < attack(aim, seconds=60, seed=0, examples=33).examples <= 33
    assert main(["--only", "maps.softmax", "--examples", "1", "--seed", "0"]) == 0
    assert "maps.softmax ·" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "nowhere"])


def test_the_oracle_knows_what_can_be_said_in_closed_form():
    assert entmax_row([0.0, 0.0], 1.5) == [0.5, 0.5]
    assert entmax_row([1.0, 0.5, -1.0], 2.0) == [0.75, 0.25, 0.0]
    assert entmax_row([0.0, float("-inf")], 0.5) == [1.0, 0.0]
    assert entmax_row([0.0, -1e-3], 50.0) == pytest.approx([0.9403, 0.0597], abs=1e-4)

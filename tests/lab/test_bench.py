"""The benchmark harness: that its clock, its scales and its record are right. Speed itself is never tested."""

import dataclasses
import json
import math
import os
import sys

import mpmath
import pytest
import scipy
import torch

import contmax
from contmax_lab import bench
from contmax_lab.bench.__main__ import main

MEGABYTE = 2**20


class FakeClock:
    """Time that passes only when a contender says so."""

    def __init__(self):
        self.now = 0.0
        self.turns = []

    def __call__(self):
        return self.now

    def contender(self, name, *seconds):
        """Takes the given times in turn, the last one for ever."""
        left = list(seconds)

        def call():
            self.turns.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def effort(block=1.0, fewest=3, most=3, budget=0.0):
    return bench.Effort(small=True, block=block, fewest_rounds=fewest, most_rounds=most, budget=budget)


# -- timing ------------------------------------------------------------------------------------------------------------


def test_ratio_of_times_is_exact_on_a_clock_of_our_own():
    clock = FakeClock()
    times = bench.interleaved(
        {"base": clock.contender("base", 2.0), "ours": clock.contender("ours", 5.0)}, effort(), clock
    )
    assert times == {"base": [2.0] * 3, "ours": [5.0] * 3}
    figure = bench.ratio(times, "ours", "base", table="t", row="r", column="c")
    assert (figure.value, figure.details["minimum"], figure.details["rounds"]) == (2.5, 2.5, 3)


def test_contenders_take_turns():
    clock = FakeClock()
    names = ["base", "ours", "peer"]
    bench.interleaved({name: clock.contender(name, 2.0) for name in names}, effort(), clock)
    assert clock.turns[-9:] == names * 3


def test_the_first_call_which_compiles_does_not_fill_a_block():
    clock = FakeClock()
    times = bench.interleaved({"ours": clock.contender("ours", 1000.0, 0.01)}, effort(fewest=1, most=1), clock)
    assert times["ours"] == [pytest.approx(0.01)]
    assert len(clock.turns) > 200  # a block of a hundred to find its size, and one to measure


@pytest.mark.parametrize("seconds", [0.5, 0.01, 1e-5])
def test_short_calls_are_repeated_until_a_block_is_full(seconds):
    clock = FakeClock()
    times = bench.interleaved({"ours": clock.contender("ours", seconds)}, effort(block=1.0, fewest=1, most=1), clock)
    assert times["ours"] == [pytest.approx(seconds)]
    assert clock.now >= 2.0  # one block to find its size, one to measure


def test_a_call_that_finds_the_caches_of_another_contender_is_not_timed():
    clock = FakeClock()

    def contender(name):
        def call():
            cold = clock.turns[-1:] != [name]
            clock.turns.append(name)
            clock.now += 5.0 if cold else 0.5

        return call

    times = bench.interleaved({name: contender(name) for name in ("base", "ours")}, effort(), clock)
    assert times == {"base": [0.5] * 3, "ours": [0.5] * 3}


@pytest.mark.parametrize(("budget", "rounds"), [(0.0, 2), (20.0, 4), (1e6, 9)])
def test_rounds_follow_the_budget_between_their_bounds(budget, rounds):
    clock = FakeClock()
    contenders = {"base": clock.contender("base", 2.0), "ours": clock.contender("ours", 3.0)}
    times = bench.interleaved(contenders, effort(fewest=2, most=9, budget=budget), clock)
    assert len(times["base"]) == len(times["ours"]) == rounds


def test_ratio_takes_median_and_minimum_of_the_rounds():
    times = {"ours": [1.0, 9.0, 4.0], "base": [1.0, 1.0, 2.0]}
    figure = bench.ratio(times, "ours", "base", table="t", row="r", column="c")
    assert (figure.value, figure.details["minimum"], figure.details["rounds"]) == (2.0, 1.0, 3)


def test_threads_are_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with bench.one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# -- memory ------------------------------------------------------------------------------------------------------------


def allocates(held: int, dropped: int):
    """A call that keeps `held` bytes and meanwhile uses `dropped` bytes more."""
    kept = []

    def call():
        kept.append(torch.ones(held, dtype=torch.uint8))
        torch.ones(dropped, dtype=torch.uint8)

    return call


def test_peak_memory_counts_what_is_freed_again(monkeypatch):
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "1000")  # the allocator of torch on ARM; the user's choice stays
    environment = dict(os.environ)
    arguments = (24 * MEGABYTE, 40 * MEGABYTE)
    # The rehearsal leaves a high-water mark above all that the measured call needs.
    extra = bench.peak_extra_memory(allocates, arguments, rehearsal=(1, 200 * MEGABYTE))
    assert dict(os.environ) == environment
    if extra is None:
        pytest.skip("the system does not tell its high-water mark")
    assert extra / MEGABYTE == pytest.approx(64, abs=2)


# -- accuracy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.1, 4 / 3, 1.5, 1.9, 2.0])
def test_the_exact_map_agrees_with_high_precision(alpha):
    x = [0.3, 1.2, -0.5, 1.1, 0.9]
    with mpmath.workdps(40):
        a = mpmath.mpf(alpha) - 1

        def total(t):
            return sum(max(a * mpmath.mpf(v) - t, 0) ** (1 / a) for v in x)

        low, high = a * mpmath.mpf(max(x)) - 1, a * mpmath.mpf(max(x))
        for _ in range(130):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) > 1 else (low, middle)
        expected = [float(max(a * mpmath.mpf(v) - low, 0) ** (1 / a)) for v in x]
    p = bench.exact_entmax(torch.tensor(x, dtype=torch.float64), alpha)
    torch.testing.assert_close(p, torch.tensor(expected, dtype=torch.float64), rtol=1e-13, atol=1e-14)


def test_the_exact_map_takes_one_alpha_per_row():
    x, alpha = torch.randn(3, 17), torch.tensor([[1.2], [1.5], [1.9]])
    rows = [bench.exact_entmax(x[i], float(alpha[i])) for i in range(3)]
    torch.testing.assert_close(bench.exact_entmax(x, alpha), torch.stack(rows))


def test_errors_see_a_wrong_probability_and_a_wrong_sum():
    x = torch.randn(4, 9)
    found = bench.errors(lambda scores, alpha: contmax.entmax(scores.double(), alpha) + 0.25, bench.Solved.of(x, 1.5))
    assert found.float32 == pytest.approx(0.25, abs=1e-6)
    assert found.float32_sum == pytest.approx(9 * 0.25, abs=1e-6)


def test_rounding_to_the_nearest_is_free_and_to_the_other_side_is_not():
    x = torch.randn(16, 33)

    def rounded(scores, alpha):
        return contmax.entmax(scores.double(), alpha).float().bfloat16()

    def rounded_to_the_wrong_side(scores, alpha):
        p, nearest = contmax.entmax(scores.double(), alpha), rounded(scores, alpha)
        return torch.nextafter(nearest, (nearest < p).bfloat16())

    solved = bench.Solved.of(x, 1.5)
    assert bench.errors(rounded, solved).bfloat16 <= 1e-8
    assert bench.errors(rounded_to_the_wrong_side, solved).bfloat16 > 1e-4


# -- figures and tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "bounds", "reached"),
    [
        (2.5, {"at_most": 2.5}, True),
        (2.6, {"at_most": 2.5}, False),
        (9.0, {"at_least": 9.0}, True),
        (8.9, {"at_least": 9.0}, False),
        (math.nan, {"at_most": 1.0}, False),
        (math.nan, {"at_least": 1.0}, False),
        (None, {"at_most": 1.0}, None),
        (3.0, {}, None),
    ],
)
def test_whether_a_target_is_reached(value, bounds, reached):
    assert bench.Figure("t", "r", "c", value, **bounds).reached is reached


def test_a_figure_has_one_target():
    with pytest.raises(ValueError, match="one target"):
        bench.Figure("t", "r", "c", 1.0, at_most=1.0, at_least=1.0)


def test_a_figure_that_is_not_a_number_is_valid_json_and_missed():
    stored = bench.Figure("t", "r", "c", math.nan, at_most=1.0).as_json()
    assert json.loads(json.dumps(stored, allow_nan=False))["value"] is None
    assert stored["reached"] is False


def test_table_marks_what_is_missed_and_leaves_what_is_missing_empty():
    text = bench.tables(
        [
            bench.Figure("time", "(2, 3)", "sparsemax", 3.14159, at_most=2.5),
            bench.Figure("time", "(2, 3)", "entmax", 1234.5, at_most=2000.0),
            bench.Figure("time", "(4, 5)", "sparsemax", None, at_most=4.0),
            bench.Figure("error", "(2, 3)", "sparsemax", 1.234e-7, at_most=1e-6),
        ]
    )
    time, error = text.split("\n\n")
    title, columns, targets, first, second = time.splitlines()
    assert title == "time"
    assert columns.split() == ["sparsemax", "entmax"]
    assert targets.split() == ["≤", "2.5/4", "≤", "2000"]
    assert first.split() == ["(2,", "3)", "3.14", "✗", "1234"]
    assert second.split() == ["(4,", "5)", "–", "–"]
    assert error.splitlines()[-1].split() == ["(2,", "3)", "1.23e-07"]


def test_large_numbers_have_no_exponent_until_they_cannot_be_read():
    figures = [bench.Figure("size", f"row {value:g}", "ours", value) for value in (999.4, 12345.6, 2.5e6)]
    lines = bench.tables(figures).splitlines()[-3:]
    assert [line.split()[-1] for line in lines] == ["999", "12346", "2.5e+06"]


# -- the command -------------------------------------------------------------------------------------------------------


def one_figure(value, **bounds):
    return bench.Suite("tiny", lambda effort: iter([bench.Figure("t", "r", "c", value, **bounds)]), peers=())


def test_record_says_where_and_on_what():
    stored = bench.record()
    assert set(stored["versions"]) == {"python", "contmax", "torch", "numpy", "numba", "triton", "entmax"}
    assert stored["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert stored["machine"]["cpu"]
    assert stored["machine"]["cores_used"] == torch.get_num_threads()
    assert stored["commit"] is None or len(stored["commit"]) == 40
    assert (stored["commit"] is None) == (stored["dirty"] is None)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """One quick run of the suite `maps`: its results."""
    folder = tmp_path_factory.mktemp("bench")
    main(["maps", "--quick", "--output", str(folder)])
    return json.loads((folder / "maps.json").read_text())


def test_results_hold_command_commit_machine_and_versions(quick_run):
    assert quick_run["command"] == "python -m contmax_lab.bench maps --quick"
    assert {"commit", "dirty", "date", "machine", "versions", "method", "missing_peers", "figures"} <= set(quick_run)
    assert quick_run["machine"]["cores_used"] == 1


def test_every_figure_has_its_target_and_verdict(quick_run):
    fields = {"table", "row", "column", "value", "at_most", "at_least", "details", "reached"}
    for figure in quick_run["figures"]:
        assert set(figure) == fields
        if "by entmax" in figure["row"]:
            assert figure["reached"] is None
        else:
            assert (figure["at_most"] is None) != (figure["at_least"] is None)
            assert figure["reached"] in (True, False)
        if "forward + backward" in figure["table"]:
            assert 0 < figure["details"]["minimum"] <= figure["value"]
            assert len(figure["details"]["seconds"]) == 2


def test_every_map_is_compared_with_softmax_and_with_the_peer(quick_run):
    timed = {(f["table"], f["column"]) for f in quick_run["figures"] if "forward + backward" in f["table"]}
    maps = {"sparsemax", "entmax α=1.5", "entmax α=4/3", "entmax, tensor α"}
    times = "forward + backward: time / torch.softmax"
    for table in (times, f"{times}, flat logits", f"{times}, rows full of ties"):
        assert {column for t, column in timed if t == table} == maps
    assert {column for t, column in timed if "faster than" in t} == maps


def test_our_errors_are_within_their_targets(quick_run):
    ours = [f for f in quick_run["figures"] if f["table"].startswith("largest error") and f["at_most"] is not None]
    assert ours
    assert all(figure["reached"] for figure in ours)


def test_a_missing_peer_leaves_its_figures_empty(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "entmax", None)
    main(["maps", "--quick", "--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "entmax is not installed: pip install entmax" in printed
    stored = json.loads((tmp_path / "maps.json").read_text())
    assert stored["missing_peers"] == ["entmax"]
    for figure in stored["figures"]:
        of_peer = (
            "entmax package" in figure["table"] or "by entmax" in figure["row"] or "than entmax" in figure["column"]
        )
        assert (figure["value"] is None) == of_peer
        assert of_peer <= (figure["reached"] is None)


def test_a_new_suite_is_one_line_in_the_list(monkeypatch, capsys, tmp_path):
    suite = dataclasses.replace(one_figure(3.0, at_most=2.0), peers=("scipy",))
    monkeypatch.setattr("contmax_lab.bench.__main__.SUITES", [suite])
    main(["--output", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "0 of 1 targets reached" in printed
    stored = json.loads((tmp_path / "tiny.json").read_text())
    assert stored["command"] == "python -m contmax_lab.bench tiny"
    assert stored["versions"]["scipy"] == scipy.__version__


@pytest.mark.parametrize(("arguments", "stores"), [([], True), (["--quick"], False)])
def test_a_quick_run_does_not_overwrite_stored_results(monkeypatch, tmp_path, arguments, stores):
    monkeypatch.setattr("contmax_lab.bench.__main__.SUITES", [one_figure(1.0)])
    monkeypatch.chdir(tmp_path)
    main(arguments)
    assert (tmp_path / "results" / "bench" / "tiny.json").exists() == stores


def test_an_unknown_suite_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["mops"])
    assert "there is no suite mops; choose from maps" in capsys.readouterr().err

"""The suite of translation: every attention takes a step and says a translation, and ratios have the right way up."""

import pytest

from contmax_lab.bench import GPU_SUITES, QUICK, SUITES, _training


class Turns:
    """A clock on the CPU by which everything but discrete softmax takes twice as long."""

    device = "cpu"

    def device_times(self, calls, effort):
        for call in calls.values():
            call()
        return {name: [1.0 if name == "discrete softmax" else 2.0] for name in calls}

    wall_times = device_times


def test_ratios_and_rates():
    figures = list(_training.translation_figures(QUICK, Turns()))
    steps = [figure for figure in figures if "training step" in figure.table]
    rates = [figure for figure in figures if "tokens per second" in figure.table]
    assert (len(steps), len(rates)) == (12, 4)
    assert all(figure.value == pytest.approx(2.0) for figure in steps)
    assert all(figure.value == pytest.approx(0.5) for figure in rates)
    for clock, target in (("device", "≤ 1.2"), ("laboratory", "≤ 1.2"), ("eager", None)):
        targets = {figure.column: figure.target for figure in figures if clock in figure.table}
        assert targets["disc. + cont. sparsemax"] == targets["continuous sparsemax"] == target
        assert targets["discrete sparsemax"] is None
    assert {figure.target for figure in rates} == {None, "≥ 0.85"}


def test_it_is_among_the_suites_of_both_devices():
    assert all("translation" in [suite.name for suite in suites] for suites in (SUITES, GPU_SUITES))

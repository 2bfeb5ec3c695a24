"""The support as a list of intervals: which pieces are joined, and what is too small to be told of."""

import pytest
import torch

import contmax
from contmax.domains import Interval, Knots
from contmax.prediction._prediction import joined, without_slivers

F64 = torch.float64
NAN = float("nan")


def intervals(*rows):
    return torch.tensor(rows, dtype=F64)


def same(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), equal_nan=True, rtol=0, atol=0)


def test_pieces_that_touch_are_joined_and_dead_ones_part_them():
    start, stop = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=F64), torch.tensor([1.0, 2.0, 3.0, 3.5], dtype=F64)
    same(joined(start, stop, torch.tensor([True, True, True, True])), [[0.0, 3.5]])
    same(joined(start, stop, torch.tensor([True, True, False, True])), [[0.0, 2.0], [3.0, 3.5]])
    same(joined(start, stop, torch.tensor([False, True, False, False])), [[1.0, 2.0]])
    # A piece that ends early leaves a gap before the next.
    same(joined(start, torch.tensor([1.0, 1.5, 3.0, 3.5], dtype=F64), torch.ones(4) > 0), [[0.0, 1.5], [2.0, 3.5]])


def test_a_gap_is_bridged_up_to_its_size():
    start, stop = torch.tensor([0.0, 1.25], dtype=F64), torch.tensor([1.0, 2.0], dtype=F64)
    live = torch.tensor([True, True])
    same(joined(start, stop, live, 0.25), [[0.0, 2.0]])
    same(joined(start, stop, live, 0.125), [[0.0, 1.0], [1.25, 2.0]])
    # Never across a dead piece, however short the gap.
    three = torch.tensor([0.0, 1.0, 1.0], dtype=F64), torch.tensor([1.0, 1.0, 2.0], dtype=F64)
    same(joined(*three, torch.tensor([True, False, True]), 5.0), [[0.0, 1.0], [1.0, 2.0]])


def test_rows_with_fewer_intervals_are_filled_up():
    start = torch.tensor([[0.0, 1.0, 2.0]] * 3, dtype=F64)
    live = torch.tensor([[True, False, True], [False, True, True], [False, False, False]])
    expected = [[[0.0, 1.0], [2.0, 3.0]], [[1.0, 3.0], [NAN, NAN]], [[NAN, NAN], [NAN, NAN]]]
    same(joined(start, start + 1, live), expected)


def test_slivers_go_and_the_gaps_beside_them_close():
    size = torch.tensor(1e-3, dtype=F64)
    # A sliver between two intervals, further away from both than its own size.
    same(without_slivers(intervals([0.0, 1.0], [1.5, 1.5005], [2.0, 3.0]), size), [[0.0, 1.0], [2.0, 3.0]])
    # A gap of the size of a sliver is none; one that is wider stays.
    same(without_slivers(intervals([0.0, 1.0], [1.0005, 3.0]), size), [[0.0, 3.0]])
    same(without_slivers(intervals([0.0, 1.0], [1.002, 3.0]), size), [[0.0, 1.0], [1.002, 3.0]])
    # Of slivers alone the longest is kept: a support is never empty.
    same(without_slivers(intervals([0.0, 1e-4], [1.0, 1.0005]), size), [[1.0, 1.0005]])
    # Filling of shorter rows is no interval.
    rows = torch.stack([intervals([0.0, 1.0], [NAN, NAN]), intervals([0.0, 1.0], [2.0, 3.0])])
    same(without_slivers(rows, size), [[[0.0, 1.0], [NAN, NAN]], [[0.0, 1.0], [2.0, 3.0]]])
    same(without_slivers(intervals([1.0, 1.0 + 1e-6]), size), [[1.0, 1.0 + 1e-6]])


def test_a_jump_of_the_score_leaves_no_slivers():
    p = contmax.regularized_prediction(
        lambda t: 1.0 * (t > 0.3123) - 1.0 * (t > 0.7), Interval(torch.tensor(0.0, dtype=F64), 1.0), 2.0
    )
    torch.testing.assert_close(
        contmax.regularized_prediction(
            lambda t: 3.0 * (t > 0.3123) - 3.0 * (t > 0.7), Interval(torch.tensor(0.0, dtype=F64), 1.0), 2.0
        ).support.cells,
        intervals([0.3123, 0.7]),
        rtol=0,
        atol=1e-9,
    )
    assert p.support.cells.shape == (1, 2)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_islands_of_knots_are_told_apart(alpha):
    knots = Knots(torch.arange(5, dtype=F64))
    p = contmax.regularized_prediction(torch.tensor([9.0, -9.0, 9.0, -9.0, 9.0], dtype=F64), knots, alpha)
    cells = p.support.cells
    assert cells.shape == (3, 2)
    assert (cells[1:, 0] > cells[:-1, 1]).all()
    assert cells[1].mean().item() == pytest.approx(2.0)

"""α-normmax and budgets against oracles in exact or 40-digit arithmetic, and at their limits."""

from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from contmax.integrations import entmax

SCORES = [
    [0.0, 0.25, 0.5, 0.75, 1.0],
    [3.0, -1.0, 2.9, 2.95, -40.0, 0.5],
    [1e-3, 2e-3, 0.0],
    [7.0, 7.0, 7.0, 6.0],
    [5.0],
]
reals = st.floats(-8, 8, width=32)
vectors = st.lists(reals, min_size=1, max_size=12)


# Normmax -------------------------------------------------------------------------------------------------------------


def normmax_by_mpmath(scores: list[float], alpha: float) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """p and the threshold τ with Σ [x − τ]₊^{α/(α−1)} = 1, by bisection."""
    with mpmath.workdps(40):
        x, power = [mpmath.mpf(v) for v in scores], 1 / (mpmath.mpf(alpha) - 1)
        low, high = max(x) - 1, max(x)
        for _ in range(130):
            middle = (low + high) / 2
            mass = mpmath.fsum((v - middle) ** (1 + power) for v in x if v > middle)
            low, high = (middle, high) if mass >= 1 else (low, middle)
        q = [(v - low) ** power if v > low else mpmath.mpf(0) for v in x]
        return [v / mpmath.fsum(q) for v in q], low


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("alpha", [1.001, 1.1, 1.5, 2.0, 3.0, 50.0])
def test_normmax_against_mpmath(scores, alpha):
    true = torch.tensor([float(v) for v in normmax_by_mpmath(scores, alpha)[0]], dtype=torch.float64)
    p = entmax.normmax_bisect(torch.tensor(scores, dtype=torch.float64), alpha)
    torch.testing.assert_close(p, true, rtol=1e-11, atol=1e-13)
    single = torch.tensor(scores, dtype=torch.float32)
    exact = entmax.normmax_bisect(single.double(), alpha)
    torch.testing.assert_close(entmax.normmax_bisect(single, alpha).double(), exact, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("alpha", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("target", [0, 3])
def test_normmax_loss_is_the_threshold_plus_one_minus_the_score(alpha, target):
    scores = [3.0, -1.0, 2.9, 2.95]
    true = normmax_by_mpmath(scores, alpha)[1] + 1 - scores[target]
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        loss = entmax.normmax_bisect_loss(torch.tensor([scores], dtype=dtype), torch.tensor([target]), alpha)
        assert loss.item() == pytest.approx(float(true), rel=rtol)


@given(vectors, st.floats(1.05, 20))
def test_normmax_satisfies_its_optimality_conditions(scores, alpha):
    x = torch.tensor(scores, dtype=torch.float64)
    p = entmax.normmax_bisect(x, alpha)
    torch.testing.assert_close(p.sum(), torch.ones((), dtype=torch.float64))
    # The gradient x − (p/‖p‖)^{α−1} of the objective is τ on the support and at most τ off it.
    slope = x - (p / p.pow(alpha).sum() ** (1 / alpha)) ** (alpha - 1)
    threshold = slope[p.argmax()]
    torch.testing.assert_close(slope[p > 0], threshold.expand_as(slope[p > 0]), rtol=0, atol=1e-10)
    assert (x[p == 0] <= threshold + 1e-10).all()


def test_normmax_at_the_ends_of_alpha():
    scores = torch.tensor([0.0, 1.0, 1.4, 1.2])
    support = entmax.sparsemax(scores) > 0
    torch.testing.assert_close(entmax.normmax_bisect(scores, torch.inf), support / support.sum())
    largest = torch.tensor([0.0, 0.0, 1.0, 0.0])
    for alpha in (1, 0.5, 1 + 1e-6):
        torch.testing.assert_close(entmax.normmax_bisect(scores, alpha), largest)
    torch.testing.assert_close(entmax.normmax_bisect(torch.tensor([2.0, 0.0, 2.0]), 1), torch.tensor([0.5, 0.0, 0.5]))


def test_normmax_with_one_alpha_per_row_on_both_sides_of_one():
    scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([[2.0], [1.0], [0.5], [1.5]], dtype=torch.float64, requires_grad=True)
    p = entmax.normmax_bisect(scores, alpha)
    for row, each in enumerate(alpha.flatten().tolist()):
        torch.testing.assert_close(p[row], entmax.normmax_bisect(scores[row], each))
    gradients = torch.autograd.grad(p.square().sum(), (scores, alpha))
    assert all(g.isfinite().all() for g in gradients)
    assert gradients[1][1:3].eq(0).all()


@pytest.mark.parametrize("alpha", [1.2, 2.0, 4.0])
def test_normmax_gradients(alpha):
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    assert gradcheck(entmax.normmax_bisect, (scores, alpha), fast_mode=True)
    assert gradgradcheck(entmax.normmax_bisect, (scores, alpha), fast_mode=True)


def test_normmax_loss_with_mass_on_a_masked_class_is_infinite():
    scores = torch.tensor([[0.0, -torch.inf]])
    assert entmax.normmax_bisect_loss(scores, torch.tensor([1])) == torch.inf
    assert entmax.normmax_bisect_loss(scores, torch.tensor([[0.5, 0.5]])) == torch.inf
    assert entmax.normmax_bisect_loss(scores, torch.tensor([[1.0, 0.0]])) == 0
    nothing = torch.full((1, 2), -torch.inf, requires_grad=True)
    loss = entmax.normmax_bisect_loss(nothing, torch.tensor([1]))
    assert loss == torch.inf
    assert torch.autograd.grad(loss, nothing)[0].eq(0).all()


@given(vectors, st.floats(1.05, 20), st.data())
def test_normmax_loss_is_not_negative(scores, alpha, data):
    weights = data.draw(st.lists(st.floats(0.125, 1, width=32), min_size=len(scores), max_size=len(scores)))
    x, y = torch.tensor([scores], dtype=torch.float64), torch.tensor([weights], dtype=torch.float64)
    assert entmax.normmax_bisect_loss(x, y / y.sum(), alpha) >= -1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normmax_loss_of_soft_targets_at_a_high_alpha(dtype):
    """A quarter to the power of α underflows, and its root is a quarter all the same."""
    x, y = torch.tensor([[0.3, 0.1, 0.2, 0.1]], dtype=dtype), torch.full((1, 4), 0.25, dtype=dtype)
    for alpha in (50.0, 500.0, 2000.0):
        with mpmath.workdps(40):
            norm = mpmath.mpf("0.25") * mpmath.power(4, 1 / mpmath.mpf(alpha))
        p = entmax.normmax_bisect(x.double(), alpha)
        largest = p.max() * ((p / p.max()) ** alpha).sum() ** (1 / alpha)
        expected = ((p - y) * x).sum() - largest + float(norm)
        assert entmax.normmax_bisect_loss(x, y, alpha).item() == pytest.approx(float(expected), abs=1e-6)


# Budgets -------------------------------------------------------------------------------------------------------------


def budget_by_fractions(scores: list[float], budget: float) -> list[Fraction]:
    """clip(x − τ, 0, 1) with the exact τ, found on the pieces between neighbouring edges x and x − 1."""
    x, budget = [Fraction(v) for v in scores], Fraction(budget)

    def clipped(threshold):
        return [min(max(v - threshold, Fraction(0)), Fraction(1)) for v in x]

    edges = sorted({*x, *(v - 1 for v in x)})
    left = max((e for e in edges if sum(clipped(e)) >= budget), default=edges[0])
    above = sum(clipped(left)) - budget
    right = min((e for e in edges if e > left), default=left + 1)
    fall = sum(clipped(left)) - sum(clipped(right))
    return clipped(left + above / fall * (right - left) if fall else left)


@given(vectors, st.data())
def test_budget_against_exact_arithmetic(scores, data):
    budget = data.draw(st.one_of(st.integers(0, len(scores)), st.floats(0, len(scores), width=32)))
    true = torch.tensor([float(v) for v in budget_by_fractions(scores, budget)], dtype=torch.float64)
    p = entmax.budget_bisect(torch.tensor(scores, dtype=torch.float64), budget)
    torch.testing.assert_close(p, true, rtol=0, atol=1e-14)
    single = entmax.budget_bisect(torch.tensor(scores, dtype=torch.float32), budget)
    torch.testing.assert_close(single.double(), true, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_budget_keeps_digits_far_below_the_maximum(dtype):
    scores = torch.tensor([1e9, 1e6, 0.5, 0.25, 0.125, -1e9], dtype=dtype)
    true = torch.tensor([1, 1, 13 / 24, 7 / 24, 4 / 24, 0], dtype=dtype)
    torch.testing.assert_close(entmax.budget_bisect(scores, 3), true)


def test_budget_on_long_rows_with_edges_on_every_scale():
    scores = torch.logspace(-6, 2, 4000, dtype=torch.float64).repeat(3, 1) * torch.tensor([[1.0], [-1.0], [0.01]])
    budget = torch.tensor([[1.5], [1000.25], [3999.0]], dtype=torch.float64)
    p = entmax.budget_bisect(scores, budget)
    torch.testing.assert_close(p.sum(-1, keepdim=True), budget, rtol=1e-12, atol=0)
    active = (p > 0) & (p < 1)
    spread = [(scores[row] - p[row])[active[row]] for row in range(3)]
    for threshold in spread:
        torch.testing.assert_close(threshold, threshold.mean().expand_as(threshold), rtol=0, atol=1e-12)


def test_budgets_that_cannot_be_met():
    scores = torch.tensor([[1.0, -torch.inf, 0.5]], requires_grad=True)
    torch.testing.assert_close(entmax.budget_bisect(scores, 7).detach(), torch.tensor([[1.0, 0.0, 1.0]]))
    for budget in (0, -3):
        p = entmax.budget_bisect(scores, budget)
        assert p.eq(0).all()
        assert torch.autograd.grad(p.sum(), scores)[0].eq(0).all()


def test_budget_gradients_in_scores_and_budget():
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    budget = torch.tensor([[0.7], [2.3], [4.1]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(entmax.budget_bisect, (scores, budget), fast_mode=True)
    assert gradgradcheck(entmax.budget_bisect, (scores, budget), fast_mode=True)


@pytest.mark.parametrize("function", [entmax.normmax_bisect, entmax.budget_bisect])
def test_nan_spoils_its_own_slice_only(function):
    p = function(torch.tensor([[0.0, torch.nan, 1.0], [0.0, 0.5, 1.0]]))
    assert p[0].isnan().all()
    assert p[1].isfinite().all()


@pytest.mark.parametrize("function", [entmax.normmax_bisect, entmax.budget_bisect])
def test_bad_scores_are_refused(function):
    with pytest.raises(TypeError, match="float"):
        function(torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="empty axis"):
        function(torch.zeros(2, 0))

"""Where one score has nearly all the mass, or one is next to the threshold: the gradient is small, but all of it right.

What is compared is relative to its largest entry, so the probabilities that it hangs on must have all their digits.
"""

import mpmath
import numpy as np
import pytest
import torch

import contmax

pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

# The smallest p whose digits a dtype holds.
LIMITS = {torch.float32: (1e-6, 1e-37), torch.float64: (1e-12, 1e-300)}
ALPHAS = [0.3, 0.7, 0.95, 1.0001, 1.01, 1.05, 1.1, 1.2, 1.25, 1.3, 4 / 3, 1.4, 1.5, 1.5000001]
ALPHAS += [1.6, 1.75, 1.9, 1.95, 1.99, 1.9999999, 2.0]
COTANGENT = np.float32([0.7, -1.1, 0.4, 1.3, -0.2])


def _rows(alpha, dtype):
    """Scores whose largest leaves some 1e-20 … 0.3 to the next, alone or with others, large or small; and as below."""
    random, epsilon = np.random.default_rng(4), alpha - 1
    for runner_up in (0.3, 1e-3, 1e-7, 1e-12, 1e-20):
        below = (1 - runner_up**epsilon) / epsilon
        for size in (0.1, 30.0):
            top = size * random.uniform(0.5, 1)
            yield top, top - below
            yield top - below, top, top - below * 1.01, top - 1.3 * below
        yield top, top, top - below, top - below
    # In float64 the threshold itself has no more digits.
    closest = (1e-7, 1e-8, 1e-9) if dtype == torch.float32 else ()
    yield from _next_to_threshold([0.25, 0.1, -0.2, -0.4], alpha, (3e-2, -1e-3, 1e-5, 1e-6, -1e-6, *closest))


def _next_to_threshold(scores, alpha, distances):
    """The scores and one more on either side of where it would get no mass, which at α ≤ 1 is nowhere."""
    if alpha > 1:
        p = contmax.entmax(torch.tensor(np.float32(scores), dtype=torch.float64), alpha)
        threshold = scores[0] - float(p[0]) ** (alpha - 1) / (alpha - 1)
        for distance in distances:
            yield *scores, threshold + distance


def _exact(x, alpha):
    """p, the gradient and the loss of the largest score, from more digits than are compared."""
    x, g = [mpmath.mpf(float(v)) for v in x], [mpmath.mpf(float(v)) for v in COTANGENT]
    epsilon, a, step = mpmath.mpf(alpha) - 1, mpmath.mpf(0), 1
    v = [score - max(x) for score in x]
    while abs(step) > mpmath.mpf(10) ** -50:
        u = [max(1 + epsilon * (score - a), 0) for score in v]
        p = [b ** (1 / epsilon) if b else b for b in u]
        s = [b ** (1 / epsilon - 1) if b else b for b in u]
        step = (mpmath.fsum(p) - 1) / mpmath.fsum(s)
        a += step
    mean = mpmath.fdot(s, g[: len(s)]) / mpmath.fsum(s)
    loss = (epsilon * mpmath.fdot(v, p) + a) / alpha
    grad = [b * (c - mean) for b, c in zip(s, g, strict=False)]
    return [float(b) for b in p], [float(b) for b in grad], float(loss)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_gradients_are_right_to_the_digits_of_their_largest_entry(alpha, dtype):
    tolerance, smallest = LIMITS[dtype]
    for row in _rows(alpha, dtype):
        # In float64 the scores have more digits than float32 holds, so that differences are rounded there, too.
        x = torch.tensor(row, dtype=dtype, requires_grad=True)
        with mpmath.workdps(60):
            exact_p, exact_grad, _ = _exact(x.tolist(), alpha)
        if min(v for v in exact_p if v > 0) < smallest:
            continue
        p = contmax.entmax(x, alpha)
        (grad,) = torch.autograd.grad(p, x, torch.tensor(COTANGENT[: len(row)], dtype=dtype))
        size = max(abs(v) for v in exact_grad)
        assert max(abs(a - b) for a, b in zip(p.tolist(), exact_p, strict=True)) <= tolerance, row
        error = max(abs(a - b) for a, b in zip(grad.tolist(), exact_grad, strict=True))
        assert error <= tolerance * size, (row, error / size)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("alpha", [0.7, 1.05, 1.3, 1.5, 1.75])
def test_small_losses_of_the_right_class_have_six_digits(alpha, dtype):
    for runner_up in (1e-2, 1e-9, 1e-15):
        below = (1 - runner_up ** (alpha - 1)) / (alpha - 1)
        row = np.float32([1.1, 1.1 - below, 1.1 - 1.2 * below])
        loss = contmax.losses.entmax_loss(torch.tensor(row[None], dtype=dtype), torch.tensor([0]), alpha)
        with mpmath.workdps(60):
            assert loss.item() == pytest.approx(_exact(row, alpha)[2], rel=5e-6, abs=0)


@pytest.mark.parametrize("alpha", [1.6, 1.75, 1.9])
def test_many_scores_that_are_equal_share_alike(alpha):
    p = contmax.entmax(torch.zeros(5000, dtype=torch.float64), alpha)
    torch.testing.assert_close(p, torch.full_like(p, 1 / 5000), rtol=1e-15, atol=0)


@pytest.mark.parametrize("alpha", [0.01, 0.03, 0.3, 1.5])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_scores_at_the_end_of_the_dtype_have_finite_gradients(alpha, dtype):
    lowest = torch.finfo(dtype).min
    x = torch.tensor([[0.0, lowest], [0.0, lowest / 40]], dtype=dtype, requires_grad=True)
    index = torch.tensor(alpha, dtype=dtype, requires_grad=True)
    for grad in torch.autograd.grad(contmax.entmax(x, index)[:, 0].sum(), (x, index)):
        assert grad.isfinite().all()

"""Maps and derivatives for α ∈ (0, 100] on hostile rows, against mpmath, in both precisions, also weighted."""

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacfwd, jacrev, vmap

import contmax
from contmax.domains import Nodes

F32, F64 = torch.float32, torch.float64
TOLERANCE = {F32: 1e-6, F64: 1e-12}
# All of them are numbers of float32, so that a tensor of either precision holds the same α.
NEAR = [1 - 2**-20, 1.0, 1 + 2**-23, 1 + 2**-10, 2 - 2**-20, 2.0, 2 + 2**-22, 2 + 2**-10]
SPREAD = [
    0.03125,
    0.3125,
    0.75,
    1.125,
    1.25,
    1.5,
    1.75,
    1.9375,
    2.25,
    3.0,
    4.0,
    5.5,
    7.0,
    10.0,
    20.0,
    33.0,
    50.0,
    100.0,
]
ALPHAS = NEAR + SPREAD
LENGTH = 16


def _rows():
    """Ties, near ties, ranges from 1e-30 to 1e30, a mass in the last point of 1e-4, rows like a model's."""
    random = np.random.default_rng(5)
    rows = [
        np.zeros(1),
        np.zeros(LENGTH),
        [0.171, -0.055, 0.119],
        [0.0, -1e-3],
        [0.0, 0.0, -1e-3, -1e-3, -2e-3],
        [1.0, 1.0 - 2.0**-23, 1e-10, 0.0],
        -(10.0 ** -np.arange(0.0, 30.0, 2.0)),
        [0.0, -1e30, 1e30, 1e30],
        [5e-30, 3e-30, 0.0, -1e-31],
        [0.0, *[-((1 - q) ** 3 - q**3) / 3 for q in (1e-4, 3e-4)]],
        random.normal(size=LENGTH),
        1e-6 * random.normal(size=12),
        8 * random.normal(size=15),
        1000 + random.normal(size=8),
        # One point has nearly all the mass: the gradient is small, its largest entry minus the sum of the others.
        [0.0, -30.0, -31.5],
        [2.0, -1.75, -2.5, -2.5],
        [100.0, 2.0, 1.0, -5.0],
    ]
    return [np.asarray(row, np.float32).astype(np.float64) for row in rows]


ROWS = _rows()
WEIGHTS = (10 ** np.random.default_rng(6).uniform(-3, 1, LENGTH)).astype(np.float32).astype(np.float64)
COTANGENT = np.random.default_rng(7).normal(size=LENGTH).astype(np.float32).astype(np.float64)


def _solved(x, w, epsilon):
    """p for ε = α − 1 by Newton's method: on the partition for ε ≤ 1, on the logarithm of the smallest p beyond.

    The mass is convex in either, so that from above every step falls short of the root: there is nothing to guard.
    """
    p, slope, at = _from_smallest(x, w, epsilon) if epsilon > 1 else _from_partition(x, w, epsilon)
    while True:
        weights = p(at)
        excess = mpmath.fdot(w, weights) - 1
        if excess <= mpmath.mpf(10) ** -37:
            return weights
        at -= excess / mpmath.fdot(w, slope(at, weights))


def _from_smallest(x, w, epsilon):
    order = sorted(range(len(x)), key=lambda i: -x[i])

    def mass(m):
        return sum(w[i] * (epsilon * (x[i] - x[order[m]])) ** (1 / epsilon) for i in order[:m])

    last = max(m for m in range(len(x)) if mass(m) < 1)
    inside = set(order[: last + 1])

    def p(log_v):
        power = mpmath.exp(epsilon * log_v)
        bases = [epsilon * (v - x[order[last]]) + power for v in x]
        return [b ** (1 / epsilon) if i in inside else mpmath.mpf(0) for i, b in enumerate(bases)]

    def slope(log_v, weights):
        power = mpmath.exp(epsilon * log_v)
        return [power * v ** (1 - epsilon) if v > 0 else v for v in weights]

    return p, slope, -mpmath.log(sum(w[i] for i in inside))


def _from_partition(x, w, epsilon):
    top = max(x)

    def p(shift):
        u = [v - top + shift for v in x]
        if epsilon == 0:
            return [mpmath.exp(v) for v in u]
        return [(1 + epsilon * v) ** (1 / epsilon) if 1 + epsilon * v > 0 else mpmath.mpf(0) for v in u]

    def slope(shift, weights):
        return [v ** (1 - epsilon) if v > 0 else v for v in weights]

    mass = w[x.index(top)]
    return p, slope, -mpmath.log(mass) if epsilon == 0 else (mass ** (-epsilon) - 1) / epsilon


@functools.cache
def _oracle(row, alpha, weighted):
    """(p, gradient of the scores, of α, what rounding errors of the last are in proportion to, smallest p)."""
    with mpmath.workdps(40):
        x = [mpmath.mpf(v) for v in ROWS[row]]
        w = [mpmath.mpf(v) for v in WEIGHTS[: len(x)]] if weighted else [mpmath.mpf(1)] * len(x)
        g, epsilon = [mpmath.mpf(v) for v in COTANGENT[: len(x)]], mpmath.mpf(alpha) - 1
        p = _solved(x, w, epsilon)
        smallest = min(v for v in p if v > 0)
    # The textbook formula cancels by a factor of up to s; here there are digits enough.
    with mpmath.workdps(60 + int(max(0, alpha - 2) * abs(mpmath.log10(smallest)))):
        s = [v ** (1 - epsilon) if v > 0 else mpmath.mpf(0) for v in p]
        log_p = [mpmath.log(v) if v > 0 else mpmath.mpf(0) for v in p]
        y = [epsilon * v for v in log_p]
        d = [
            v**2 / 2 if epsilon == 0 else (1 - (1 - u) * mpmath.exp(u)) / epsilon**2
            for u, v in zip(y, log_p, strict=True)
        ]
        total = mpmath.fdot(w, s)
        mean, mean_d = (
            mpmath.fdot(s, g) / total,
            mpmath.fsum(a * b * c for a, b, c in zip(w, s, d, strict=True)) / total,
        )
        grad = [a * (b - c * mean) for a, b, c in zip(s, g, w, strict=True)]
        # A rounding of p by its own size moves D by p^{α−1} ln p. For α ≤ 2 the code does not centre D, nor need it.
        rounding = [abs(a * b * v**epsilon) for a, b, v in zip(grad, log_p, p, strict=True) if v > 0]
        terms = [a * (b - mean_d) for a, b in zip(grad, d, strict=True)]
        size = max(abs(a) for a in rounding + (terms if epsilon > 1 else [a * b for a, b in zip(grad, d, strict=True)]))
        numbers = [float(v) for v in p], [_number(v) for v in grad], float(-mpmath.fsum(terms))
        return *numbers, float(size), max(float(smallest), 1e-300)


def _number(value):
    return math.copysign(np.finfo(float).max, value) if abs(value) > np.finfo(float).max else float(value)


def _padded(row, dtype):
    return torch.tensor([*row, *[-math.inf] * (LENGTH - len(row))], dtype=dtype)


def _check(p, grad, grad_alpha, alpha, dtype, weighted):
    largest = torch.finfo(dtype).max
    for r, row in enumerate(ROWS):
        n = len(row)
        exact_p, exact_grad, exact_alpha, size, smallest = _oracle(r, alpha, weighted)
        expected = np.array(exact_p)
        assert abs(p[r, :n].double().numpy() - expected).max() <= TOLERANCE[dtype] * max(1, expected.max()), (r, alpha)
        assert (p[r, n:] == 0).all()
        # For α < 2 as well, a small p is e to the power of ln p, which has as many roundings as its size says.
        condition = max(1, (alpha - 2) / smallest, -0.3 * math.log(smallest))
        if condition > 0.01 / TOLERANCE[dtype]:
            assert grad[r].isfinite().all(), (r, alpha)
            continue
        expected = np.clip(exact_grad, -largest, largest)
        allowed = TOLERANCE[dtype] * condition * abs(expected).max() + 1e-30
        assert abs(grad[r, :n].double().numpy() - expected).max() <= allowed, (r, alpha)
        if grad_alpha is not None:
            allowed = TOLERANCE[dtype] * condition * max(size, abs(exact_alpha)) + 1e-30
            assert abs(grad_alpha[r].item() - exact_alpha) <= allowed, (r, alpha, exact_alpha)


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_rows_against_mpmath(alpha, dtype):
    x = torch.stack([_padded(row, dtype) for row in ROWS]).requires_grad_()
    g = torch.tensor(COTANGENT, dtype=dtype).expand_as(x)
    learned = torch.full((len(ROWS), 1), alpha, dtype=dtype, requires_grad=True)
    p = contmax.entmax(x, learned)
    _check(p.detach(), *torch.autograd.grad(p, (x, learned), g), alpha, dtype, weighted=False)
    if alpha != 1:  # a fixed α = 1 is torch.softmax, to the last bit
        p = contmax.entmax(x, alpha)
        _check(p.detach(), *torch.autograd.grad(p, x, g), None, alpha, dtype, weighted=False)


# The kernels know no weights: once is enough.
@pytest.mark.parametrize("backend", ["compiled"], indirect=True)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weighted_points_against_mpmath(alpha):
    domain = Nodes(torch.arange(LENGTH, dtype=F64), torch.tensor(WEIGHTS))
    x = torch.stack([_padded(row, F64) for row in ROWS]).requires_grad_()
    learned = torch.full((len(ROWS),), alpha, dtype=F64, requires_grad=True)
    p = contmax.regularized_prediction(x, domain, learned).density(domain.points[:, None]).T
    gradients = torch.autograd.grad(p, (x, learned), torch.tensor(COTANGENT).expand_as(x))
    _check(p.detach(), *gradients, alpha, F64, weighted=True)


@pytest.mark.parametrize("alpha", [20.0, 100.0])
def test_long_rows_of_ties(alpha):
    x = torch.zeros(2, 1000)
    x[1, 500:] = -1e-3
    p = contmax.entmax(x, alpha)
    torch.testing.assert_close(p[0], torch.full((1000,), 1e-3), rtol=1e-6, atol=0)
    assert abs(p[1].double().sum().item() - 1) <= 1e-6
    assert (p[1, :500] == p[1, 0]).all()


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_gradient_beyond_the_dtype_is_its_largest_number(dtype):
    # Two points of probability 5e-5 at α = 100: s = p^{−98} is beyond float64.
    q, epsilon = 5e-5, 99
    x = torch.tensor([0.0, *[-((1 - 2 * q) ** epsilon) / epsilon] * 2], dtype=dtype, requires_grad=True)
    p = contmax.entmax(x, 100.0)
    assert (p[1:] > 0).all()
    (grad,) = torch.autograd.grad(p, x, torch.tensor([1.0, 2.0, -2.0], dtype=dtype), retain_graph=True)
    assert grad[1] == torch.finfo(dtype).max == -grad[2]
    # Cotangents that tie there give numbers of order one.
    (grad,) = torch.autograd.grad(p, x, torch.tensor([1.0, 0.0, 0.0], dtype=dtype))
    torch.testing.assert_close(grad, p[0].detach() ** -98 * torch.tensor([1.0, -0.5, -0.5], dtype=dtype))


@pytest.mark.parametrize("alpha", [2.5, 6.0, 30.0])
def test_second_derivatives_and_transforms_beyond_two(alpha):
    x = torch.tensor([0.3, 0.28, 0.295, -4.0], dtype=F64, requires_grad=True)
    index = torch.tensor([alpha], dtype=F64, requires_grad=True)
    assert gradcheck(contmax.entmax, (x, index), check_forward_ad=True, eps=1e-8, atol=1e-4)
    assert gradgradcheck(contmax.entmax, (x, index), eps=1e-8, rtol=1e-3, atol=1e-3, fast_mode=True)
    p, rows = contmax.entmax(x, alpha).detach(), x.detach().expand(3, 4) + torch.arange(3)[:, None]
    s = torch.where(p > 0, p, 1) ** (2 - alpha) * (p > 0)
    off_diagonal = torch.outer(s, s) / s.sum()
    off_diagonal.fill_diagonal_(0)
    expected = torch.diag(off_diagonal.sum(0)) - off_diagonal
    for jacobian in (jacrev, jacfwd):
        torch.testing.assert_close(jacobian(lambda x: contmax.entmax(x, alpha))(x.detach()), expected)
    torch.testing.assert_close(vmap(jacrev(contmax.entmax), (0, None))(rows, index)[1], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 4.0, "tensor"])
def test_forward_and_reverse_mode_agree_on_weighted_points(alpha):
    domain = Nodes(torch.linspace(0, 1, 6, dtype=F64), torch.tensor([0.1, 0.5, 0.02, 1.0, 0.3, 0.2], dtype=F64))
    index = torch.tensor(1.7, dtype=F64) if alpha == "tensor" else alpha

    def density(x):
        return contmax.regularized_prediction(x, domain, index).density(domain.points)

    x = torch.tensor([0.3, 0.1, 0.2, -0.4, 0.25, 0.0], dtype=F64)
    numeric = torch.stack([(density(x + h) - density(x - h)) / 2e-6 for h in 1e-6 * torch.eye(6, dtype=F64)], -1)
    for jacobian in (jacrev, jacfwd):
        torch.testing.assert_close(jacobian(density)(x), numeric, rtol=1e-5, atol=1e-7)


def test_what_lies_off_the_support_does_not_reach_the_gradient():
    x = torch.tensor([[0.3, 0.29, -5.0, -6.0]], requires_grad=True)
    p = contmax.entmax(x, 3.0)
    (grad,) = torch.autograd.grad(p, x, torch.tensor([[1.0, 2.0, torch.nan, torch.inf]]))
    assert grad.isfinite().all()
    assert (grad[0, 2:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_beyond_half_precision_are_its_largest_number(dtype):
    x = torch.full((2,), -1.75, dtype=dtype, requires_grad=True)
    for alpha in (20.0, torch.full((1,), 57.0)):
        p = contmax.entmax(x, alpha)
        (slope,) = torch.autograd.grad((p * torch.tensor([-1.0, 1.0], dtype=dtype)).sum(), x)
        assert slope.dtype == dtype
        assert slope.isfinite().all()
        assert slope[0] < 0 < slope[1]

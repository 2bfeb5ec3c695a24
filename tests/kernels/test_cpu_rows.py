"""The compiled rows against an oracle of more digits, beside plain torch in the same precision."""

import functools
import math

import numpy as np
import pytest
import torch

import contmax
from contmax import _backend
from contmax.kernels import rows

pytest.importorskip("numba", reason="numba is not installed: pip install 'contmax[cpu]'")

# All but 4/3 are the same number in float32 and float64, so that one oracle serves both.
ALPHAS = [0.3125, 0.90625, 1.0, 1 + 2**-13, 1.125, 1.25, 4 / 3, 1.40625, 1.5, 1.75, 1.953125, 2.0]
SIZES = [1, 2, 15, 16, 17, 280, 1000]
# A vocabulary's length, where sums are long: every way in which p is computed from the threshold.
LONG_ROWS = [0.90625, 1.0, 4 / 3, 1.40625, 1.5, 2.0]
DTYPES = {torch.float32: 1e-6, torch.float64: 1e-12}


def _scores(n: int) -> torch.Tensor:
    """A flat row, one like a model's, a peaked one, one of ties, and one that is shifted and masked."""
    x = torch.randn(5, n)
    x[0] *= 0.01
    x[2] *= 10
    x[3] = torch.randint(0, 2, (n,))
    x[4] = 3 * x[4] - 1000
    x[4, 1::3] = -torch.inf
    return x


@functools.lru_cache(maxsize=2)
def _rows_and_oracles(n: int, alpha: float):
    """Scores and cotangents in float32, and what is exact for each of their rows."""
    torch.manual_seed(n)
    x, g = _scores(n), torch.randn(5, n)
    return x, g, [_oracle(x[r], alpha, g[r]) for r in range(5)]


def _oracle(x, alpha: float, g):
    """p, the pulled-back g and the α-gradient of one row in extended precision, by Newton's method on Σ p.

    The last is accompanied by the sum of the sizes of its terms, to which rounding errors are in proportion.
    """
    x, g = x.double().numpy().astype(np.longdouble), g.double().numpy().astype(np.longdouble)
    epsilon = np.longdouble(alpha) - 1

    def deformed(v):
        """exp_α(v) and its slope exp_α(v)^(2−α): one power, which takes long where more digits are not in hardware."""
        if epsilon == 0:
            return (np.exp(v),) * 2
        u = 1 + v.dtype.type(epsilon) * v
        p = np.power(u, 1 / v.dtype.type(epsilon), where=u > 0, out=np.zeros_like(u))
        return p, np.divide(p, u, where=p > 0, out=np.zeros_like(u))

    # A step that is shorter than 1e-9 leaves an error of its square: with more digits, one is enough.
    a = np.longdouble(0)
    for kind in (np.float64, np.longdouble):
        step = np.inf
        while abs(step) > 1e-9 * (1 + a):
            p, slope = deformed((x - x.max()).astype(kind) - kind(a))
            total = p.sum()
            step = total / slope.sum() * (np.log(total) if epsilon == 0 else (1 - total**-epsilon) / epsilon)
            a += step
    p, s = deformed(x - x.max() - a)
    p, s = p / p.sum(), s / p.sum() ** (1 - epsilon)
    grad = s * (g - (s * g).sum() / s.sum())
    log_p = np.log(p, where=p > 0, out=np.zeros_like(p))
    y, exp_y = epsilon * log_p, np.divide(p, s, where=p > 0, out=np.ones_like(p))
    direct = (y * exp_y - exp_y + 1) / np.where(y == 0, 1, y) ** 2
    series = np.polynomial.polynomial.polyval(y, [np.longdouble(1) / (math.factorial(m) * (m + 2)) for m in range(12)])
    terms = log_p**2 * np.where(abs(y) < 0.1, series, direct) * grad
    return p, grad, -terms.sum(), 1 + abs(terms).sum()


def _with_gradients(x, alpha, g):
    x = x.clone().requires_grad_()
    p = contmax.entmax(x, alpha)
    inputs = (x, alpha) if isinstance(alpha, torch.Tensor) else (x,)
    return p.detach(), *torch.autograd.grad(p, inputs, g)


@pytest.fixture
def plain_torch(monkeypatch):
    """Call it to run a function as if numba were not installed."""

    def run(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(_backend.NUMBA, "works", False)
            return function(*arguments)

    return run


# The dtype is exhausted first: it shares the oracle.
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("n", "alpha"),
    [(n, alpha) for n in SIZES for alpha in ALPHAS] + [(32001, alpha) for alpha in LONG_ROWS],
)
def test_error_is_at_most_twice_that_of_plain_torch(n, alpha, dtype, plain_torch):
    learned = torch.full((5, 1), alpha, dtype=dtype, requires_grad=True)
    x, g, exact = _rows_and_oracles(n, learned[0].item())
    x, g = x.to(dtype), g.to(dtype)
    runs = {
        "learned": _with_gradients(x, learned, g),
        "fixed": _with_gradients(x, alpha, g),
        "torch": plain_torch(_with_gradients, x, learned, g),
    }

    def errors(run):
        p = [abs(run[0][r].numpy() - exact[r][0]).max() for r in range(5)]
        grad = [abs(run[1][r].numpy() - exact[r][1]).max() for r in range(5)]
        along_alpha = [abs(run[2][r].item() - exact[r][2]) / exact[r][3] for r in range(5)] if len(run) > 2 else [0.0]
        return np.array([max(p), max(grad), max(along_alpha)])

    allowed = np.maximum(2 * errors(runs["torch"]), DTYPES[dtype])
    assert (errors(runs["learned"]) <= allowed).all()
    assert (errors(runs["fixed"])[:2] <= allowed[:2]).all()


@pytest.mark.parametrize("alpha", [0.5, 1.3, 4 / 3, 1.5, 2.0])
def test_without_numba_the_numbers_are_the_same(alpha, plain_torch):
    x, g = _scores(100), torch.randn(5, 100)
    compiled, reference = _with_gradients(x, alpha, g), plain_torch(_with_gradients, x, alpha, g)
    for ours, theirs in zip(compiled, reference, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_each_row_has_its_own_alpha(dim):
    x = torch.randn(4, 5, 6, dtype=torch.float64)
    shape = [1 if d == dim else n for d, n in enumerate(x.shape)]
    alpha = torch.tensor(ALPHAS * 3, dtype=torch.float64)[: torch.Size(shape).numel()].reshape(shape)
    p = contmax.entmax(x, alpha, dim).movedim(dim, -1).reshape(-1, x.shape[dim])
    rows = zip(x.movedim(dim, -1).reshape(-1, x.shape[dim]), alpha.movedim(dim, -1).reshape(-1), strict=True)
    torch.testing.assert_close(p, torch.stack([contmax.entmax(row, a.item()) for row, a in rows]), rtol=0, atol=1e-14)


def test_gradient_of_a_shared_alpha_is_the_sum_over_its_rows():
    x, g = torch.randn(6, 40, dtype=torch.float64), torch.randn(6, 40, dtype=torch.float64)
    shared = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    single = torch.full((6, 1), 1.3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(_with_gradients(x, shared, g)[2], _with_gradients(x, single, g)[2].sum())


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [1, 17, 300])
def test_broken_rows_do_not_touch_their_neighbours(alpha, n):
    x = torch.randn(6, n)
    x[1], x[2], x[3, n // 2], x[4, n // 2] = -torch.inf, torch.nan, torch.nan, torch.inf
    learned = torch.full((6, 1), alpha, requires_grad=True)
    g = torch.randn(6, n)
    results = _with_gradients(x, learned, g)
    alone = _with_gradients(x[[0, 5]], learned.detach()[[0, 5]].requires_grad_(), g[[0, 5]])
    for result, expected in zip(results, alone, strict=True):
        assert result[2:5].isnan().all()
        assert (result[1] == 0).all()
        assert result[[0, 5]].isfinite().all()
        assert torch.equal(result[[0, 5]], expected)


def test_what_lies_off_the_support_does_not_reach_the_gradient():
    x = torch.tensor([[3.0, 2.9, -5.0, -6.0]])
    _, grad = _with_gradients(x, 1.5, torch.tensor([[1.0, 2.0, torch.nan, torch.inf]]))
    assert grad.isfinite().all()
    assert (grad[0, 2:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_huge_ranges(alpha, dtype):
    huge = torch.finfo(dtype).max
    x = torch.zeros(5, 70, dtype=dtype)
    x[0], x[1, 3], x[2, ::2] = torch.linspace(-huge / 4, huge / 4, 70, dtype=dtype), huge, -huge
    x[3], x[4] = torch.linspace(-1e6, 1e6, 70, dtype=dtype), 1e9 + torch.arange(70, dtype=dtype)
    p, grad, grad_alpha = _with_gradients(
        x, torch.full((5, 1), alpha, dtype=dtype, requires_grad=True), torch.ones_like(x)
    )
    assert torch.allclose(p.sum(-1), torch.ones(5, dtype=dtype), rtol=0, atol=1e-6)
    assert p[0, -1] == 1 == p[1, 3]
    assert grad.isfinite().all()
    assert grad_alpha.isfinite().all()


@pytest.mark.parametrize("alpha", [1.1, 1.25, 1.5, 1.75, 2.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_long_rows_sum_to_one(alpha, scale):
    p = contmax.entmax(scale * torch.randn(2, 262_144), alpha)
    assert (p.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3, 4 / 3, 1.5, 1.9, 2.0])
def test_the_maximum_is_that_of_the_definition(alpha):
    """Ω*(x) = ⟨x, p⟩ − Ω_α(p), which the kernel finds from the partition and not from this sum, less max x."""
    x = 3 * torch.randn(5, 37, dtype=torch.float64) + 2
    p, gain = rows.on_cpu().entmax_rows(x, alpha)
    exact = ((x - x.amax(-1, keepdim=True)) * p).sum(-1) - contmax.deformed.tsallis_negentropy(p, alpha)
    torch.testing.assert_close(gain[:, 0], exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("alpha", "most"), [(1.5, 6e-6), (2.0, 2e-7)])
def test_gradients_of_a_long_flat_row_sum_to_zero(alpha, most):
    """What the dtype drops of the mean of the cotangent would be in every term, and add up over the row."""
    x = (0.001 * torch.randn(1, 100_000)).requires_grad_()
    (gradient,) = torch.autograd.grad(contmax.entmax(x, alpha), x, 1000 + torch.randn_like(x))
    weight = contmax.entmax(x.detach(), alpha).double() ** (2 - alpha)
    assert gradient.double().sum().abs() < most * weight.sum()


def test_the_mean_of_a_cotangent_keeps_what_its_dtype_drops():
    """Sums of these integers are exact in float32, and their mean is not: all that is lost is lost with the mean."""
    x = (1e-7 * torch.randn(8, 20_000)).requires_grad_()
    p = contmax.sparsemax(x)
    assert (p > 0).all()
    g = 1000.0 + torch.randint(0, 2, x.shape)
    g = g.scatter(1, p.argmax(-1, keepdim=True), 0.0)  # what the cotangents are less of
    means = g.double().mean(-1)
    assert ((means - means.float()).abs() > 5e-6).any()
    (gradient,) = torch.autograd.grad(p, x, g)
    assert (gradient.double().mean(-1).abs() < 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 10])
def test_alphas_within_rounding_of_an_integer_order(k, dtype):
    """A rising α passes numbers such as 1.2000000000000002, where k = 1/(α − 1) is 5 to rounding and α exceeds 1.2."""
    x, alpha = torch.randn(3, 12, dtype=dtype), 1 + 1 / k
    for near in (math.nextafter(alpha, 1), alpha, math.nextafter(alpha, 3), alpha + 2e-16 * k, alpha + 1e-8):
        exact = contmax.entmax(x.double(), alpha) if dtype == torch.float32 else contmax.entmax(x, alpha + 1e-13)
        assert torch.allclose(contmax.entmax(x, near).double(), exact, atol=1e-5)

"""The finite maps against golden values, a float64 oracle, torch.softmax, and the contracts of the library."""

import functools
import math

import mpmath
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import contmax

ALPHAS = [0.3, 0.8, 1.0, 1.0001, 1.1, 1.25, 4 / 3, 1.5, 1.75, 1.9, 2.0, 2.5, 3.0, 4.0]
F64 = torch.float64


@functools.cache
def oracle(x, alpha):
    """Bisection with mpmath for one slice, a tuple: slow, and sure to 18 digits."""
    with mpmath.workdps(25):
        values = [mpmath.mpf(float(v)) for v in x]
        top = max(values)
        epsilon = mpmath.mpf(alpha) - 1

        def p(a):
            if epsilon == 0:
                return [mpmath.exp(v - top - a) for v in values]
            bases = [1 + epsilon * (v - top - a) for v in values]
            return [b ** (1 / epsilon) if b > 0 else mpmath.mpf(0) for b in bases]

        low, high = mpmath.mpf(0), mpmath.log(len(values)) if epsilon == 0 else None
        if high is None:
            high = (1 - mpmath.mpf(len(values)) ** (-epsilon)) / epsilon
        for _ in range(64):
            middle = (low + high) / 2
            low, high = (middle, high) if sum(p(middle)) > 1 else (low, middle)
        result = p((low + high) / 2)
        return np.array([float(v / sum(result)) for v in result])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_values(golden, dtype):
    for case in golden["entmax_discrete"]:
        alpha = float(case["inputs"]["alpha"])
        z = torch.tensor([float(v) for v in case["inputs"]["z"]], dtype=dtype, requires_grad=True)
        g = torch.tensor([float(v) for v in case["inputs"]["g"]], dtype=dtype)
        p = contmax.entmax(z, alpha)
        (vjp,) = torch.autograd.grad(p, z, g)
        if dtype == F64:
            expected_p = torch.tensor([float(v) for v in case["outputs"]["p"]], dtype=F64)
            expected_vjp = torch.tensor([float(v) for v in case["outputs"]["vjp"]], dtype=F64)
            tolerance = {"rtol": 1e-9, "atol": 1e-9} if alpha > 2 else {"rtol": 1e-12, "atol": 1e-13}
        else:
            # A float32 result is compared with the float64 result of the rounded input.
            exact = z.detach().double().requires_grad_()
            expected_p = contmax.entmax(exact, alpha)
            (expected_vjp,) = torch.autograd.grad(expected_p, exact, g.double())
            expected_p = expected_p.detach()
            tolerance = {"rtol": 2e-5, "atol": 2e-6}
        torch.testing.assert_close(p.detach().double(), expected_p, **tolerance)
        torch.testing.assert_close(vjp.double(), expected_vjp, **tolerance)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_against_bisection_to_many_digits(alpha):
    for scale in (0.01, 1.0, 8.0):
        x = scale * torch.randn(23, dtype=F64)
        expected = torch.from_numpy(oracle(tuple(x.tolist()), alpha))
        torch.testing.assert_close(contmax.entmax(x, alpha), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n", [1, 2, 17, 280, 4096])
def test_float32_within_a_millionth_of_float64(alpha, n):
    x = 3 * torch.randn(16, n)
    p = contmax.entmax(x, alpha)
    assert (p.double() - contmax.entmax(x.double(), alpha)).abs().max() <= 1e-6
    # α = 1 is torch.softmax to the last bit, which on ARM misses a sum of one by 1.1e-6 here.
    allowed = max(1e-6, _miss(torch.softmax(x, -1))) if alpha == 1 else 1e-6
    assert _miss(p) <= allowed


def _miss(p):
    """By how much the sum of a row misses one."""
    return float((p.double().sum(-1) - 1).abs().max())


@pytest.mark.parametrize("alpha", [1.1, 1.25, 4 / 3, 1.5, 1.75, 2.0, 3.0])
@pytest.mark.parametrize("n", [100, 400, 1000, 4095])
def test_equal_scores_get_equal_shares_to_a_few_units_in_the_last_place(alpha, n):
    """A sum of equal terms is where rounding errors add up instead of cancelling."""
    p = contmax.entmax(torch.zeros(2, n), alpha)
    torch.testing.assert_close(p.double(), torch.full((2, n), 1 / n, dtype=F64), rtol=3e-7, atol=0)


def test_alpha_one_is_exactly_softmax():
    x = torch.randn(5, 9)
    assert torch.equal(contmax.entmax(x, 1.0), torch.softmax(x, -1))
    assert torch.equal(contmax.softmax(x, 0), torch.softmax(x, 0))
    torch.testing.assert_close(contmax.entmax(x, torch.ones(5, 1)), torch.softmax(x, -1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_every_dim(alpha, dim):
    x = torch.randn(3, 4, 5, dtype=F64, requires_grad=True)
    g = torch.randn(3, 4, 5, dtype=F64)
    p = contmax.entmax(x, alpha, dim)
    moved = contmax.entmax(x.movedim(dim, -1), alpha).movedim(-1, dim)
    torch.testing.assert_close(p, moved)
    torch.testing.assert_close(torch.autograd.grad(p, x, g), torch.autograd.grad(moved, x, g))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_derivatives(alpha):
    x = (1.5 * torch.randn(4, 6, dtype=F64)).requires_grad_()
    index = torch.full((4, 1), alpha, dtype=F64, requires_grad=True)
    assert gradcheck(lambda x: contmax.entmax(x, alpha), x, fast_mode=True)
    assert gradcheck(contmax.entmax, (x, index), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(contmax.entmax, (x, index), rtol=1e-3, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_third_derivatives_exist(alpha):
    x = torch.tensor([0.3, 0.1, -0.2, -4.0], dtype=F64, requires_grad=True)

    def gradient_norm(x):
        (g,) = torch.autograd.grad(contmax.entmax(x, alpha).square().sum(), x, create_graph=True)
        return g.square().sum()

    assert gradgradcheck(gradient_norm, x, rtol=1e-3, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("alpha", [1 - 1e-4, 1.0, 1 + 1e-7, 1.0001, 1.001, 1.01])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_accurate_through_alpha_one(alpha, dtype):
    x = torch.tensor([[1.2, 0.3, -0.5, -2.0]], dtype=dtype)
    index = torch.tensor([[alpha]], dtype=dtype, requires_grad=True)
    p = contmax.entmax(x, index)
    torch.testing.assert_close(p.detach().double(), torch.from_numpy(oracle(tuple(x[0].tolist()), index.item()))[None],
                               rtol=0, atol=2e-7 if dtype == torch.float32 else 1e-13)  # fmt: skip
    (slope,) = torch.autograd.grad(p[0, 0], index)
    h = 1e-5
    above, below = (oracle(tuple(x[0].tolist()), index.item() + s * h)[0] for s in (1, -1))
    assert slope.item() == pytest.approx((above - below) / (2 * h), rel=2e-6 if dtype == torch.float32 else 1e-8)


def test_alpha_per_head_and_per_row():
    x = torch.randn(2, 3, 4, 5, dtype=F64)
    heads = torch.tensor([0.7, 1.5, 3.0], dtype=F64).view(3, 1, 1)
    p = contmax.entmax(x, heads)
    for h, alpha in enumerate([0.7, 1.5, 3.0]):
        torch.testing.assert_close(p[:, h], contmax.entmax(x[:, h], alpha))
    rows = 1 + torch.rand(2, 3, 4, 1, dtype=F64)
    torch.testing.assert_close(contmax.entmax(x, rows)[1, 2, 3], contmax.entmax(x[1, 2, 3], rows[1, 2, 3].item()))
    along_one = torch.tensor([1.2, 1.8], dtype=F64).view(2, 1, 1, 1)
    torch.testing.assert_close(contmax.entmax(x, along_one, dim=2)[1], contmax.entmax(x[1], 1.8, dim=1))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("again", [False, True])  # whether gradients are to be differentiated
@pytest.mark.parametrize("by_mask", [False, True])
def test_a_cotangent_of_what_is_masked_does_not_matter(alpha, again, by_mask):
    mask = torch.tensor([[True, True, False, True, False], [False] * 5, [True] * 5])
    scores = torch.randn(3, 5, dtype=F64)
    scores = (scores if by_mask else scores.masked_fill(~mask, -torch.inf)).requires_grad_()
    p = contmax.entmax(scores, alpha, mask=mask if by_mask else None)
    plain = torch.linspace(-1, 2, 15, dtype=F64).reshape(3, 5)
    expected, *found = (
        torch.autograd.grad(p, scores, plain.masked_fill(~mask, g), retain_graph=True, create_graph=again)[0]
        for g in (0.0, torch.inf, torch.nan)
    )
    for gradient in found:
        torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_mask_is_the_same_as_leaving_out(alpha):
    x = torch.randn(4, 7, dtype=F64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False, True, True])
    p = contmax.entmax(x, alpha, mask=mask)
    torch.testing.assert_close(p[:, mask], contmax.entmax(x[:, mask], alpha))
    assert (p[:, ~mask] == 0).all()
    (g,) = torch.autograd.grad(p.square().sum(), x)
    assert (g[:, ~mask] == 0).all()
    minus_inf = contmax.entmax(x.detach().masked_fill(~mask, -math.inf), alpha)
    torch.testing.assert_close(p.detach(), minus_inf)


@pytest.mark.parametrize("function", [contmax.softmax, contmax.sparsemax, contmax.entmax])
def test_nothing_to_attend_is_zero_with_zero_gradient(function):
    x = torch.randn(3, 4, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, False, False]])
    p = function(x, mask=mask)
    assert p[1].tolist() == [0.0] * 4
    assert p[2].tolist() == [1.0, 0.0, 0.0, 0.0]
    (g,) = torch.autograd.grad(p.square().sum(), x, create_graph=True)
    assert g[1].tolist() == [0.0] * 4
    (gg,) = torch.autograd.grad(g.square().sum(), x)
    assert gg.isfinite().all()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_nan_stays_in_its_slice(alpha):
    x = torch.randn(3, 5, requires_grad=True)
    poisoned = x + torch.tensor([[0.0], [1.0], [0.0]]) * torch.tensor([0, 0, math.nan, 0, 0]).nan_to_num(nan=math.nan)
    poisoned = torch.where(torch.tensor([[False], [True], [False]]), poisoned, x)
    p = contmax.entmax(poisoned, alpha)
    assert p[1].isnan().all()
    torch.testing.assert_close(p[[0, 2]], contmax.entmax(x[[0, 2]], alpha))
    hidden = contmax.entmax(poisoned, alpha, mask=~poisoned.isnan())
    assert hidden.isfinite().all()


@pytest.mark.parametrize("alpha", [1.0, 1.3, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("shift", [1e6, -1e6])
def test_shifted_scores(alpha, shift):
    x = (torch.randn(8, 50) * 4).round() / 4  # exact in float32 also after the shift
    torch.testing.assert_close(contmax.entmax(x + shift, alpha), contmax.entmax(x, alpha), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_low_precision_is_one_rounding_from_exact(dtype, alpha):
    x = (3 * torch.randn(32, 100)).to(dtype).requires_grad_()
    g = torch.randn(32, 100).to(dtype)
    p = contmax.entmax(x, alpha)
    assert p.dtype == dtype
    exact_x = x.detach().double().requires_grad_()
    exact = contmax.entmax(exact_x, alpha)
    torch.testing.assert_close(p.double(), exact, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=1e-6)
    (grad,) = torch.autograd.grad(p, x, g)
    (exact_grad,) = torch.autograd.grad(exact, exact_x, g.double())
    torch.testing.assert_close(grad.double(), exact_grad, rtol=torch.finfo(dtype).eps / 2 * 1.01, atol=2e-6)


def test_autocast_gives_float32_as_torch_softmax_does_on_accelerators():
    x = torch.randn(3, 5, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert contmax.entmax(x).dtype == contmax.sparsemax(x).dtype == contmax.softmax(x).dtype == torch.float32
        assert contmax.entmax(x.double()).dtype == F64


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0, torch.tensor([[1.5]]), torch.tensor([[2.5]])])
def test_layouts_and_empty_batches(alpha):
    x = torch.randn(6, 8)
    expected = contmax.entmax(x, alpha)
    torch.testing.assert_close(contmax.entmax(x.t().contiguous().t(), alpha), expected)
    torch.testing.assert_close(contmax.entmax(x[::2], alpha), expected[::2])
    torch.testing.assert_close(contmax.entmax(x[0].expand(3, 8), alpha), expected[0].expand(3, 8))
    assert contmax.entmax(torch.empty(0, 8), alpha).shape == (0, 8)
    assert contmax.entmax(torch.empty(0, 8), torch.empty(0, 1)).shape == (0, 8)
    empty = torch.empty(2, 0, 8, requires_grad=True)
    contmax.entmax(empty, alpha if isinstance(alpha, float) else alpha[None]).sum().backward()
    assert empty.grad.shape == (2, 0, 8)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
def test_a_quarter_of_a_million_scores(alpha):
    x = torch.randn(1, 262_144)
    p = contmax.entmax(x, alpha)
    assert (p.double().sum(-1) - 1).abs().max() <= 1e-6
    assert (p.double() - contmax.entmax(x.double(), alpha)).abs().max() <= 1e-6


def test_temperature_is_differentiable_and_broadcasts():
    x = torch.randn(3, 5, dtype=F64, requires_grad=True)
    temperature = torch.tensor([[0.5], [1.0], [2.0]], dtype=F64, requires_grad=True)
    torch.testing.assert_close(
        contmax.entmax(x, 1.5, temperature=temperature)[0], contmax.entmax(x[0], 1.5, temperature=0.5)
    )
    assert gradcheck(lambda x, t: contmax.sparsemax(x, temperature=t), (x, temperature), fast_mode=True)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 4.0])
def test_masked_scores_have_no_part_in_the_gradient_of_a_temperature(alpha):
    x, mask = torch.randn(3, 5, dtype=F64), torch.tensor([True, False, True, True, True])
    weight = torch.randn(3, 5, dtype=F64)
    temperature = torch.full((3, 1), 0.7, dtype=F64, requires_grad=True)
    p = contmax.entmax(x, alpha, mask=mask, temperature=temperature)
    (grad,) = torch.autograd.grad((p * weight).sum(), temperature)
    p = contmax.entmax(x[:, mask], alpha, temperature=temperature)
    torch.testing.assert_close(grad, torch.autograd.grad((p * weight[:, mask]).sum(), temperature)[0])
    lowest = x.masked_fill(~mask, torch.finfo(F64).min)  # as many models mask; its quotient is −∞
    p = contmax.entmax(lowest, alpha, temperature=temperature)
    torch.testing.assert_close(grad, torch.autograd.grad((p * weight).sum(), temperature)[0])


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])  # of which a quotient overflows
@pytest.mark.parametrize("temperature", [1e-40, 1e-300, torch.tensor(1e-40)])
def test_the_lowest_temperatures_are_the_maximum(temperature, shift):
    x = (torch.tensor([[1.0, 3.0, 2.0], [2.0, 2.0, -1.0]]) + shift).requires_grad_()
    for function in (contmax.softmax, contmax.sparsemax, contmax.entmax):
        p = function(x, temperature=temperature)
        assert p.tolist() == [[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]
        assert torch.autograd.grad(p[0, 1], x)[0].tolist() == [[0.0] * 3] * 2


def test_support_shrinks_and_zeros_are_exact():
    x = torch.randn(200)
    sizes = [(contmax.entmax(x, a) > 0).sum().item() for a in (1.0, 1.1, 1.3, 1.5, 1.8, 2.0, 3.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 200
    assert sizes[-1] < sizes[2]


def test_sparsemax_is_the_euclidean_projection():
    x = torch.randn(7, dtype=F64)
    p = contmax.sparsemax(x)
    competitors = torch.distributions.Dirichlet(torch.full((7,), 0.3, dtype=F64)).sample((500,))
    assert ((p - x).square().sum() <= (competitors - x).square().sum(-1) + 1e-12).all()


@pytest.mark.graph  # without the type checker, which knows no ragged sizes
def test_nested_tensors_are_refused():
    jagged = torch.nested.nested_tensor([torch.randn(3), torch.randn(5)], layout=torch.jagged)
    for wrong in (contmax.entmax, contmax.sparsemax, contmax.nn.Entmax()):
        with pytest.raises(
            TypeError, match=r"nested tensor. Pass torch\.nested\.to_padded_tensor\(scores, -torch\.inf\)"
        ):
            wrong(jagged)
    padded = contmax.entmax(torch.nested.to_padded_tensor(jagged, -torch.inf))  # as the message says
    for row, alone in zip(padded, jagged.unbind(), strict=True):
        assert torch.equal(row[: len(alone)], contmax.entmax(alone))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: contmax.entmax(torch.empty(3, 0)), ValueError, "empty axis"),
        (lambda: contmax.entmax(torch.tensor(1.0)), ValueError, "at least one axis"),
        (lambda: contmax.entmax(torch.ones(3, dtype=torch.int64)), TypeError, r"floating-point|Float\[Tensor"),
        (lambda: contmax.entmax(torch.ones(3), dim=2), IndexError, "dim must be in"),
        (lambda: contmax.entmax(torch.ones(3), 0.0), ValueError, "alpha must be positive"),
        (lambda: contmax.entmax(torch.ones(3), math.inf), ValueError, "finite"),
        (lambda: contmax.entmax(torch.ones(3), torch.tensor([-1.0])), ValueError, "min -1"),
        (lambda: contmax.entmax(torch.ones(3), torch.tensor([math.inf])), ValueError, "finite; got min inf"),
        (lambda: contmax.entmax(torch.ones(3), torch.tensor([math.nan])), ValueError, "positive and finite"),
        (lambda: contmax.entmax(torch.ones(3), torch.tensor([1])), TypeError, r"floating-point|Float\[Tensor"),
        (lambda: contmax.entmax(torch.ones(2, 3), torch.ones(3)), ValueError, "size 1 along dim"),
        (lambda: contmax.entmax(torch.ones(2, 3), torch.ones(5, 1)), ValueError, "does not fit"),
        (lambda: contmax.softmax(torch.ones(3), temperature=0.0), ValueError, "temperature must be positive"),
        (lambda: contmax.softmax(torch.ones(3), temperature=torch.tensor([-1.0])), ValueError, "temperature must be"),
    ],
)
def test_bad_input_says_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()

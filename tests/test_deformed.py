"""The deformed calculus against golden values, mpmath, and its own identities."""

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from contmax.deformed import (
    escort,
    exp_beta,
    expm1_over,
    log1p_over,
    log_beta,
    mean_u_exp,
    tsallis_negentropy,
)

DIGITS = 80
DTYPES = [torch.float32, torch.float64]
INF = math.inf


def exact_exp(u: float, beta: float) -> mpmath.mpf:
    u, gap = mpmath.mpf(u), 1 - mpmath.mpf(beta)
    return mpmath.exp(u) if gap == 0 else (1 + gap * u) ** (1 / gap)


def exact_log(u: float, beta: float) -> mpmath.mpf:
    u, gap = mpmath.mpf(u), 1 - mpmath.mpf(beta)
    return mpmath.log(u) if gap == 0 else (u**gap - 1) / gap


def exact_derivative(function: Callable, u: float, beta: float, orders: tuple[int, int]) -> mpmath.mpf:
    """A mixed derivative in (u, β), by differences wide enough to see past β = 1."""
    with mpmath.workdps(DIGITS):
        point = (mpmath.mpf(u), mpmath.mpf(beta))
        return mpmath.diff(function, point, orders, h=mpmath.mpf(10) ** -15)


def relative_error(got: float, want: mpmath.mpf) -> float:
    return float(abs(got - want) / abs(want))


def derivatives(function: Callable, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, first and second derivative of an elementwise function."""
    y = y.clone().requires_grad_()
    value = function(y)
    (first,) = torch.autograd.grad(value.sum(), y, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), y)
    return value.detach(), first.detach(), second


# ------------------------------------------------------------------------------------------------ golden values


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(
    ("name", "function", "exact"), [("exp_beta", exp_beta, exact_exp), ("log_beta", log_beta, exact_log)]
)
def test_golden(golden, name, function, exact, as_tensor, dtype, rtol):
    for case in golden[name]:
        u = torch.tensor(float(case["inputs"]["u"]), dtype=dtype, requires_grad=True)
        beta = float(case["inputs"]["beta"])
        index = torch.tensor(beta, dtype=dtype) if as_tensor else beta
        value = function(u, index)
        (slope,) = torch.autograd.grad(value, u)
        want = [float(case["outputs"]["value"]), float(case["outputs"]["d_u"])]
        if dtype == torch.float32 and want[0] != 0:  # the value at the rounded input
            at, order = u.item(), float(index)
            power = order if name == "exp_beta" else -order
            want[0] = float(exact(at, order))
            want[1] = float(mpmath.mpf(want[0] if name == "exp_beta" else at) ** power)
        torch.testing.assert_close([value.item(), slope.item()], want, rtol=rtol, atol=0.0)


# ---------------------------------------------------------------------------------------------- building blocks


def moment_of_exp(y: mpmath.mpf, order: int) -> mpmath.mpf:
    """∫₀¹ sⁿ exp(sy) ds, the n-th derivative of expm1(y)/y."""
    return mpmath.hyp1f1(order + 1, order + 2, y) / (order + 1)


def moment_of_reciprocal(y: mpmath.mpf, order: int) -> mpmath.mpf:
    """The n-th derivative of log1p(y)/y, (−1)ⁿ n! ∫₀¹ sⁿ/(1+sy)ⁿ⁺¹ ds."""
    scale = (-1) ** order * mpmath.factorial(order) / (order + 1)
    return scale * mpmath.hyp2f1(order + 1, order + 1, order + 2, -y)


SIZES = [0.0, 1e-30, 1e-8, 1e-4, 0.03, 0.2, 0.49, 0.51, 0.8, 0.99]
EXP_SIZES = [*SIZES, 1.01, 1.5, 1.99, 2.01, 3.0, 5.0, 10.0, 20.0, 80.0]
EXP_POINTS = sorted({s * x for x in EXP_SIZES for s in (-1, 1)} | {-100.0, -1e4})
LOG_POINTS = sorted({s * x for x in SIZES for s in (-1, 1)} | {-0.9999, 1.01, 1.5, 2.5, 10.0, 1e6, 1e12})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (log1p_over, moment_of_reciprocal, LOG_POINTS),
        (expm1_over, moment_of_exp, EXP_POINTS),
        (mean_u_exp, lambda y, order: moment_of_exp(y, order + 1), EXP_POINTS),
    ],
)
def test_building_blocks_keep_their_last_digits(function, exact, points, dtype):
    y = torch.tensor(points, dtype=dtype)
    rounding, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    with mpmath.workdps(DIGITS):
        for order, got in enumerate(derivatives(function, y)):
            for at, value in zip(y.tolist(), got.tolist(), strict=True):
                want = exact(mpmath.mpf(at), order)
                if abs(want) > tiny / rounding:
                    assert relative_error(value, want) < 10 * rounding, (order, at)


def test_building_blocks_at_the_ends():
    ends = torch.tensor([-INF, -2.0, -1.0, INF])
    for function, want in [
        (log1p_over, [INF, INF, INF, 0.0]),
        (expm1_over, [0.0, -math.expm1(-2.0) / 2, -math.expm1(-1.0), INF]),
        (mean_u_exp, [0.0, (1 - 3 * math.exp(-2)) / 4, 1 - 2 * math.exp(-1), INF]),
    ]:
        value, first, second = derivatives(function, ends)
        torch.testing.assert_close(value, torch.tensor(want))
        assert not torch.stack([first, second]).isnan().any()
    for function in (expm1_over, mean_u_exp):
        assert torch.stack(derivatives(function, torch.tensor([88.7, 88.73, 1e30]))[1:]).isfinite().all()
    assert all(function(torch.tensor(torch.nan)).isnan() for function in (log1p_over, expm1_over, mean_u_exp))


# --------------------------------------------------------------------------------- β-exponential and β-logarithm

INDICES = [-1.5, 0.0, 0.5, 0.9, 0.9999, 1 - 1e-9, 1.0, 1 + 1e-12, 1.0001, 1.2, 2.0, 3.5]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("function", "exact", "points"),
    [
        (exp_beta, exact_exp, [-1.4, -0.3, 1e-6, 0.2, 2.7, 9.0]),
        (log_beta, exact_log, [1e-6, 0.3, 0.9, 1.1, 7.0, 1e4]),
    ],
)
@pytest.mark.parametrize("orders", [(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)])
def test_derivatives_through_one(function, exact, points, orders, dtype):
    u, beta = torch.cartesian_prod(torch.tensor(points, dtype=dtype), torch.tensor(INDICES, dtype=dtype)).unbind(-1)
    if exact is exact_exp:
        inside = 1 + (1 - beta) * u > 0.05  # closer to the edge the problem itself, not the code, loses digits
        u, beta = u[inside], beta[inside]
    u, beta = u.requires_grad_(), beta.requires_grad_()
    got = function(u, beta)
    for variable, order in zip((u, beta), orders, strict=True):
        for _ in range(order):
            (got,) = torch.autograd.grad(got.sum(), variable, create_graph=True)
    worst = 0.0
    for at, index, value in zip(u.tolist(), beta.tolist(), got.tolist(), strict=True):
        want = exact_derivative(exact, at, index, orders)
        if abs(want) > 1e-25:  # log_0 is linear: its second derivative is 0
            worst = max(worst, relative_error(value, want))
    assert worst < (5e-12 if dtype == torch.float64 else 2e-5)


def test_index_gradient_at_1_0001_in_single_precision():
    u, beta = torch.tensor([-3.0, -0.5, 1.0, 4.0]), torch.tensor(1.0001, requires_grad=True)
    got = torch.func.jacrev(lambda index: exp_beta(u, index))(beta)
    want = [float(exact_derivative(exact_exp, at, beta.item(), (0, 1))) for at in u.tolist()]
    torch.testing.assert_close(got, torch.tensor(want), rtol=2e-6, atol=0.0)


def test_at_one_it_is_the_ordinary_exponential_and_logarithm():
    u = torch.linspace(-85, 88, 347)
    for got, want in [
        (derivatives(lambda u: exp_beta(u, 1), u), [u.exp()] * 3),
        (derivatives(lambda u: log_beta(u, 1), u.abs() + 0.1), derivatives(torch.log, u.abs() + 0.1)),
    ]:
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("beta", [-1.0, 0.0, 0.5, 1.0, 1 + 1e-9, 1.5, 3.0])
@pytest.mark.parametrize(("function", "points"), [(exp_beta, [-0.4, 0.0, 0.1, 0.3]), (log_beta, [0.2, 0.9, 1.0, 5.0])])
def test_gradcheck(function, points, beta):
    u = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    index = torch.tensor(beta, dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, (u, index), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(function, (u, index), check_fwd_over_rev=True, fast_mode=True)


@given(u=st.floats(-30, 30), beta=st.floats(-3, 4))
def test_log_inverts_exp_on_the_support(u, beta):
    inside = 1 + (1 - beta) * u
    value = exp_beta(torch.tensor(u, dtype=torch.float64), beta)
    if inside > 1e-3 and 1e-12 < value < 1e12:
        back = log_beta(value, beta)
        # One rounding of the value v moves log_β(v) by v^(1−β) = 1+(1−β)u roundings.
        assert abs(back - u) <= 1e-13 * (1 + abs(u) + inside + abs(math.log(value)) * inside)


@given(u=st.floats(1e-8, 1e8), beta=st.floats(-3, 4))
def test_exp_inverts_log(u, beta):
    at = torch.tensor(u, dtype=torch.float64)
    back = exp_beta(log_beta(at, beta), beta)
    loss = max(1.0, u ** (beta - 1))  # log_β saturates at 1/(β−1)
    if loss < 1e8:
        torch.testing.assert_close(back, at, rtol=1e-12 * loss, atol=0.0)


@given(u=st.floats(width=32), beta=st.floats(-1e3, 1e3, width=32))
def test_nan_only_from_nan(u, beta):
    for function in (exp_beta, log_beta):
        assert function(torch.tensor(u), beta).isnan() == math.isnan(u)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [exp_beta, log_beta])
def test_no_nan_in_either_mode_of_differentiation(function, dtype):
    info = torch.finfo(dtype)
    sizes = [0, info.tiny / 8, info.tiny, 1e-36, 1e-20, 1e-8, 0.5, 1, 2, 10, 80, 88.7, 695, 709.7, 1e10, info.max]
    gaps = [0, info.eps, 1e-7, 1e-4, 0.5, 1, 2, 10, 1e4]
    sizes = torch.tensor([sign * size for size in sizes for sign in (-1, 1)], dtype=dtype)
    indices = torch.tensor([1 + sign * gap for gap in gaps for sign in (-1, 1)], dtype=dtype)
    u, beta = torch.cartesian_prod(sizes, indices).unbind(-1)
    _, backward = torch.func.vjp(function, u, beta)
    for slope in backward(torch.ones_like(u)):
        assert not slope.isnan().any()
    for tangent in [(torch.ones_like(u), torch.zeros_like(u)), (torch.zeros_like(u), torch.ones_like(u))]:
        assert not torch.func.jvp(function, (u, beta), tangent)[1].isnan().any()


def test_limits_of_exp_beta():
    u = torch.tensor([-INF, -3.0, -2.0, 0.0, 2.0, 3.0, INF], requires_grad=True)
    for beta, want in [
        (0.5, [0, 0, 0, 1, 4, 6.25, INF]),
        (1.0, [0, math.exp(-3), math.exp(-2), 1, math.exp(2), math.exp(3), INF]),
        (1.5, [0, 0.16, 0.25, 1, INF, INF, INF]),
    ]:
        value = exp_beta(u, beta)
        torch.testing.assert_close(value, torch.tensor(want, dtype=torch.float32))
        (slope,) = torch.autograd.grad(value.sum(), u)
        inside = value.isfinite() & (value > 0)
        torch.testing.assert_close(slope, torch.where(inside, value.detach() ** beta, 0.0))


def test_limits_of_log_beta():
    u = torch.tensor([-1.0, 0.0, 1.0, INF])
    for beta, want in [
        (0.5, [-INF, -2, 0, INF]),
        (1.0, [-INF, -INF, 0, INF]),
        (1.5, [-INF, -INF, 0, 2]),
    ]:
        value, first, second = derivatives(lambda at, beta=beta: log_beta(at, beta), u)
        torch.testing.assert_close(value, torch.tensor(want, dtype=torch.float32))
        torch.testing.assert_close(first, torch.tensor([0.0, 0.0, 1.0, 0.0]))
        torch.testing.assert_close(second, torch.tensor([0.0, 0.0, -beta, 0.0]))
    beta = torch.tensor(0.5, requires_grad=True)
    log_beta(torch.tensor(0.0), beta).backward()  # d/dβ −1/(1−β)
    torch.testing.assert_close(beta.grad, torch.tensor(-4.0))


def test_masked_scores_are_harmless_in_forward_mode():
    u = torch.full((3,), torch.finfo(torch.float32).min)
    for beta in (-1.0, 0.5, 1.0, 1.5):
        _, slope = torch.func.jvp(lambda index: exp_beta(u, index), (torch.tensor(beta),), (torch.tensor(1.0),))
        assert (slope == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    u, p = torch.linspace(0.1, 2, 20).to(dtype), torch.softmax(torch.randn(4, 9), -1).to(dtype)
    for function in (exp_beta, log_beta):
        for beta in (0.3, torch.tensor(1.0001), torch.tensor(1.5, dtype=dtype)):
            torch.testing.assert_close(function(u, beta), function(u.float(), beta).to(dtype), rtol=0, atol=0)
    for function in (log1p_over, expm1_over, mean_u_exp):
        torch.testing.assert_close(function(u), function(u.float()).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(escort(p, 0.5), escort(p.float(), 0.5).to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(tsallis_negentropy(p, 2.0), ((p.float() ** 2).sum(-1) / 2 - 0.5).to(dtype))


def test_dtype_shape_and_device_follow_the_input():
    u, beta = torch.rand(4, 1), torch.rand(3, dtype=torch.float64)
    assert exp_beta(u, beta).shape == log_beta(u, beta).shape == (4, 3)
    assert exp_beta(u, beta).dtype == log_beta(u, beta).dtype == torch.float64
    assert exp_beta(u, beta[0]).dtype == exp_beta(u, 1).dtype == torch.float32
    # A 64-bit scalar index keeps the digits of 1 − β that 32 bits do not have.
    near = log_beta(torch.tensor([1e38]), torch.tensor(1 + 5e-8, dtype=torch.float64))
    assert relative_error(near.item(), exact_log(torch.tensor(1e38).item(), 1 + 5e-8)) < 3e-7
    meta = torch.empty(2, 5, device="meta")
    for result in (exp_beta(meta, 1.5), log_beta(meta, 1.0), escort(meta, 0.5), tsallis_negentropy(meta, 1.5)):
        assert result.device.type == "meta"


# ---------------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_named():
    p = torch.tensor([0.5, 0.5])
    for alpha in (0, -1.0, INF, torch.nan, *(torch.tensor(a) for a in (-0.5, INF, torch.nan, [[1.0], [0.0]]))):
        with pytest.raises(ValueError, match="alpha must be positive"):
            tsallis_negentropy(p, alpha)
    for beta in (INF, -INF, torch.nan):
        with pytest.raises(ValueError, match="must be finite"):
            exp_beta(p, beta)
    with pytest.raises(ValueError, match="constant along dim"):
        escort(p, torch.tensor([1.0, 2.0]))
    for function in (exp_beta, log_beta, escort, tsallis_negentropy):
        with pytest.raises(TypeError):
            function(torch.tensor([1, 2]), 1.5)


def test_nan_stays_where_it_is():
    u = torch.tensor([0.5, torch.nan, 2.0])
    for function in (exp_beta, log_beta):
        for beta in (0.0, 1.0, 2.0):
            assert function(u, beta).isnan().tolist() == [False, True, False]
    p = torch.tensor([[0.5, torch.nan], [0.5, 0.5]])
    assert tsallis_negentropy(p, 1.5).isnan().tolist() == [True, False]
    assert escort(p, 0.5).isnan().any(-1).tolist() == [True, False]

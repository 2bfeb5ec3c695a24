"""Continuous Fenchel–Young losses as code: derivatives, transforms, shapes, dtypes."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import (
    Categorical,
    Gamma,
    Independent,
    Laplace,
    Normal,
    StudentT,
    Uniform,
)
from torch.func import grad, jacfwd, jacrev, vmap

from contmax.densities import (
    BetaGaussian,
    Empirical,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
)
from contmax.losses import fenchel_young

F64 = torch.float64


def t(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=F64)


def symmetric(matrix):
    return (matrix + matrix.mT) / 2


MATRIX = torch.tensor([[1.3, 0.4], [0.4, 0.7]], dtype=F64)
OTHER = torch.tensor([[0.6, -0.2], [-0.2, 0.9]], dtype=F64)


def line(m, s, a, m_p, s_p, a_p):
    return fenchel_young(BetaGaussian(m, s, a), BetaGaussian(m_p, s_p, a_p))


def plane(m, matrix, a, m_p, matrix_p, a_p):
    target = MultivariateBetaGaussian(m_p, symmetric(matrix_p), a_p)
    return fenchel_young(MultivariateBetaGaussian(m, symmetric(matrix), a), target)


def plane_of_one_index(m, matrix, m_p, matrix_p):
    return plane(m, matrix, 1.5, m_p, matrix_p, 1.5)


def axes(m, s, m_p, s_p):
    target = MultivariateBetaGaussian(m_p, scale_diag=s_p, alpha=3.0)
    return fenchel_young(MultivariateBetaGaussian(m, scale_diag=s, alpha=3.0), target)


def triangles(m, b, m_p, b_p):
    return fenchel_young(Triangular(m, b), Triangular(m_p, b_p))


def uniform(m, s, a, low, high):
    return fenchel_young(BetaGaussian(m, s, a), Uniform(low, high, validate_args=False))


def student(m, s, df, m_p, s_p):
    return fenchel_young(BetaGaussian(m, s, 1.5), StudentT(df, m_p, s_p, validate_args=False))


def observation(m, s, a, x):
    return fenchel_young(BetaGaussian(m, s, a), x)


def samples(m, matrix, x, w):
    return fenchel_young(MultivariateBetaGaussian(m, symmetric(matrix), 1.5), Empirical(x, w))


def triangle_against_normal(m, b, m_p, s_p):
    return fenchel_young(Triangular(m, b), Normal(m_p, s_p, validate_args=False))


def triangle_against_laplace(m, b, m_p, s_p):
    return fenchel_young(Triangular(m, b), Laplace(m_p, s_p, validate_args=False))


def triangle_against_uniform(m, b, low, high):
    return fenchel_young(Triangular(m, b), Uniform(low, high, validate_args=False))


def cosh_against_triangle(m, s, m_p, b_p):
    return fenchel_young(LocationScale(m, s, "cosh"), Triangular(m_p, b_p))


def gamma(m, s, shape, rate):
    return fenchel_young(BetaGaussian(m, s, 1.4), Gamma(shape, rate, validate_args=False))


def mixture(m, s, logits, m_p, s_p):
    weights = Categorical(logits=logits, validate_args=False)
    return fenchel_young(BetaGaussian(m, s), Mixture(weights, TruncatedParabola(m_p, s_p)))


# Locations agree in some entries: there a kink of the score meets one of the target. Indices agree, and are one, too.
CASES = {
    line: (t(0.1, 0.2), t(0.5, 0.7), t(0.9, 1.0), t(0.3, 0.2), t(0.4, 0.7), t(1.3, 1.0)),
    plane: (t(0.1, 0.3), MATRIX, t(1.0), t(0.2, -0.1), OTHER, t(2.0)),
    plane_of_one_index: (t(0.0, 0.0), torch.eye(2, dtype=F64), t(0.0, 0.0), torch.eye(2, dtype=F64)),
    axes: (t(0.1, 0.2), t(0.3, 0.4), t(0.1, 0.3), t(0.3, 0.5)),
    triangles: (t(0.1, 0.4, 2.0, 0.0), t(0.3, 0.5, 0.6, 0.5), t(0.2, 0.4, 0.0, 0.0), t(0.5, 0.5, 0.3, 0.5)),
    uniform: (t(0.1, 0.2), t(0.5, 0.7), t(1.0, 2.5), t(-0.3, 0.2), t(0.4, 0.7)),
    student: (t(0.1), t(0.5), t(3.0), t(-0.3), t(0.4)),
    observation: (t(0.1, 0.2), t(0.5, 0.7), t(1.0, 2.5), t(-0.3, 0.2)),
    samples: (t(0.1, 0.2), MATRIX, torch.tensor([[0.3, 0.4], [0.1, -1.0], [0.6, 0.2]], dtype=F64), t(0.2, 0.5, 0.9)),
    triangle_against_normal: (t(0.1, 0.2), t(0.5, 0.7), t(0.1, 0.4), t(0.4, 0.7)),
    triangle_against_laplace: (t(0.1, 0.2), t(0.5, 0.7), t(0.1, 0.4), t(0.4, 0.7)),
    triangle_against_uniform: (t(0.1, 0.2), t(0.5, 0.7), t(-0.3, 0.4), t(0.4, 0.9)),
    cosh_against_triangle: (t(0.1, 0.2), t(0.5, 0.7), t(0.1, 0.4), t(0.4, 0.7)),
    gamma: (t(0.1, 0.2), t(0.5, 0.7), t(2.1, 3.4), t(0.4, 0.7)),
    mixture: (t(0.1), t(0.5), t(0.1, 0.2), t(-0.3, 0.4), t(0.4, 0.7)),
}


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_first_and_second_derivatives_in_everything(function):
    inputs = [x.clone().requires_grad_() for x in CASES[function]]
    assert gradcheck(function, inputs, atol=1e-7, rtol=1e-6, fast_mode=True)
    assert gradgradcheck(function, inputs, atol=1e-6, rtol=1e-5, fast_mode=True)
    # The random projection of the fast mode can hide an entry; compare all of one gradient with differences.
    index = 0
    gradient = torch.autograd.grad(function(*inputs).sum(), inputs[index])[0]
    step = 1e-6
    with torch.no_grad():
        for entry in range(inputs[index].numel()):
            shift = torch.zeros_like(inputs[index])
            shift.view(-1)[entry] = step
            ahead, behind = (
                function(*(x + sign * shift if i == index else x for i, x in enumerate(inputs))).sum()
                for sign in (1, -1)
            )
            assert abs(float((ahead - behind) / (2 * step) - gradient.view(-1)[entry])) < 1e-7


def test_second_derivatives_where_kinks_meet():
    # ∂²/∂μ² of E_p|t − μ|/b is 2p(μ)/b, whichever way the pieces are ordered.
    for target in (Normal(t(0.1), t(0.4)), Laplace(t(0.1), t(0.4)), Triangular(t(0.1), t(0.3))):
        loc = t(0.1).requires_grad_()
        (first,) = torch.autograd.grad(fenchel_young(Triangular(loc, t(0.5)), target), loc, create_graph=True)
        (second,) = torch.autograd.grad(first, loc)
        torch.testing.assert_close(second, 4 * target.log_prob(t(0.1)).exp(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_transforms_of_torch_func(function):
    inputs = CASES[function]
    index = len(inputs) - 1
    torch.testing.assert_close(jacfwd(function, index)(*inputs), jacrev(function, index)(*inputs), rtol=1e-8, atol=1e-9)
    stacked = [torch.stack([x, x]) for x in inputs]
    torch.testing.assert_close(vmap(function)(*stacked)[1], function(*inputs), rtol=1e-10, atol=1e-13)
    gradients = vmap(grad(lambda *x: function(*x).sum()))(*stacked)
    torch.testing.assert_close(gradients[0], grad(lambda *x: function(*x).sum())(*inputs), rtol=1e-9, atol=1e-12)


@pytest.mark.graph
@pytest.mark.parametrize(
    ("function", "backend"),
    [
        (axes, "aot_eager_default_partitioner"),
        (plane_of_one_index, "eager"),
        (triangles, "eager"),
        (uniform, "eager"),
        (observation, "eager"),
        (samples, "eager"),
        (triangle_against_laplace, "eager"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_compiles_whole(function, backend):
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    inputs = [x.clone().requires_grad_() for x in CASES[function]]
    expected, got = function(*inputs), compiled(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), rtol=1e-9, atol=1e-12
    )


def test_matrix_gradients_are_symmetric():
    matrix, matrix_p = (m.clone().requires_grad_() for m in (MATRIX, OTHER))
    for alpha_p in (2.0, 1.3):
        target = MultivariateBetaGaussian(t(0.2, -0.1), matrix_p, alpha_p)
        loss = fenchel_young(MultivariateBetaGaussian(t(0.1, 0.3), matrix, 2.0), target)
        for gradient in torch.autograd.grad(loss, (matrix, matrix_p)):
            torch.testing.assert_close(gradient, gradient.mT, rtol=1e-13, atol=1e-14)


def test_gradient_in_the_index_is_smooth_through_one():
    alpha = (1 + torch.linspace(-3e-6, 3e-6, 7, dtype=F64)).requires_grad_()
    for target in (BetaGaussian(t(-0.1), t(0.6), 1.5), Uniform(t(-1.0), t(0.4)), t(0.3)):
        losses = fenchel_young(BetaGaussian(t(0.2), t(0.5), alpha), target)
        (slope,) = torch.autograd.grad(losses.sum(), alpha, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), alpha)
        differences = losses.detach().diff() / alpha.detach().diff()
        torch.testing.assert_close(differences, (slope[1:] + slope[:-1]).detach() / 2, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(slope.detach().diff() / alpha.detach().diff(), bend[1:], rtol=1e-3, atol=1e-4)
        assert (bend.amax() - bend.amin()).abs() < 1e-3 * bend.abs().max()


def test_diagonal_scales_need_no_matrix_and_agree_with_full_ones():
    loc, scale = torch.randn(2, 4, 3, dtype=F64), torch.rand(2, 4, 3, dtype=F64) + 0.2
    for alpha, alpha_p in ((1.0, 1.0), (2.0, 2.0), (1.5, 2.0), (math.inf, math.inf)):
        diagonal, full = (
            fenchel_young(
                MultivariateBetaGaussian(loc[0], alpha=alpha, **{name: make(scale[0])}),
                MultivariateBetaGaussian(loc[1], alpha=alpha_p, **{name: make(scale[1])}),
            )
            for name, make in (("scale_diag", lambda s: s), ("scale_tril", torch.diag_embed))
        )
        torch.testing.assert_close(diagonal, full)
    mixed = fenchel_young(
        MultivariateBetaGaussian(loc[0], scale_diag=scale[0]), MultivariateBetaGaussian(loc[1], torch.eye(3, dtype=F64))
    )
    assert mixed.shape == (4,)
    # Two matrices of this size would hold 160 GB.
    wide = 100_000
    prediction, target = (
        MultivariateBetaGaussian(torch.zeros(wide), scale_diag=torch.full((wide,), s)) for s in (1.0, 1.1)
    )
    assert fenchel_young(prediction, target).isfinite()
    assert fenchel_young(prediction, Independent(Normal(torch.zeros(wide), torch.ones(wide)), 1)).isfinite()
    assert fenchel_young(prediction, Empirical(torch.randn(2, wide))).isfinite()


def test_batches_broadcast_and_reduce():
    prediction = BetaGaussian(torch.zeros(3, 1), torch.ones(4), 1.5)
    targets = (
        BetaGaussian(torch.zeros(2, 1, 1), 1.0, 1.5),
        Uniform(torch.zeros(2, 1, 1), 1.0),
        torch.zeros(2, 1, 1),
        Empirical(torch.zeros(2, 1, 1, 5), event_dim=0),
        Gamma(torch.full((2, 1, 1), 2.0), 1.0),
    )
    for target in targets:
        losses = fenchel_young(prediction, target)
        assert losses.shape == (2, 3, 4)
        torch.testing.assert_close(fenchel_young(prediction, target, reduction="sum"), losses.sum())
        torch.testing.assert_close(fenchel_young(prediction, target, reduction="mean"), losses.mean())
    assert fenchel_young(Triangular(torch.zeros(3, 1), torch.ones(4)), Empirical(torch.zeros(5))).shape == (3, 4)
    assert fenchel_young(Triangular(0.0, 1.0), Empirical(torch.zeros(2, 5), event_dim=0)).shape == (2,)
    expanded = MultivariateBetaGaussian(torch.zeros(2), torch.eye(2)).expand((5,))
    assert fenchel_young(expanded, expanded).shape == (5,)
    empty = BetaGaussian(torch.zeros(0), 1.0)
    assert fenchel_young(empty, empty).shape == (0,)
    assert fenchel_young(empty, empty, reduction="mean") == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_rounded_once(dtype):
    inputs = [x.to(dtype) for x in (t(0.1, 0.2), t(0.5, 0.7), t(0.3, -0.1), t(0.6, 0.4))]
    for function in (
        triangles,
        triangle_against_normal,
        lambda *x: line(*x[:2], 1.5, *x[2:], 2.0),
        lambda m, s, _, x: observation(m, s, 2.0, x),
    ):
        got = function(*inputs)
        assert got.dtype == dtype
        torch.testing.assert_close(got, function(*(x.double() for x in inputs)).to(dtype), rtol=0, atol=0)
    mixtures = (Mixture(Categorical(logits=x[1]), Normal(x[2], x[3])) for x in (inputs, [x.double() for x in inputs]))
    got, expected = (fenchel_young(BetaGaussian(inputs[0], inputs[1]), p) for p in mixtures)
    assert got.dtype == dtype
    # The weights of a mixture are rounded to the precision they came in, but not left short of one.
    torch.testing.assert_close(got, expected.to(dtype), rtol=8 * torch.finfo(dtype).eps, atol=0)
    many = Mixture(Categorical(logits=torch.randn(40).to(dtype)), Normal(torch.randn(40).to(dtype), 1.0))
    assert fenchel_young(BetaGaussian(inputs[0], inputs[1]), many).isfinite().all()
    assert fenchel_young(BetaGaussian(inputs[0], 1.0), t(0.1)).dtype == F64
    assert fenchel_young(BetaGaussian(inputs[0], 1.0), Normal(t(0.1), t(1.0))).dtype == F64


def test_no_nan_from_extreme_scales():
    scales = torch.tensor([1e-8, 1e-3, 1.0, 1e3, 1e8], dtype=F64)
    for alpha in (0.5, 1.0, 1.5, 2.0, 10.0, 1e4, math.inf):
        inputs = [scales.clone().requires_grad_(), scales[:, None].clone().requires_grad_()]
        for target in (
            BetaGaussian(1e4, inputs[1], alpha),
            Uniform(-inputs[1], inputs[1]),
            Normal(t(0.0), inputs[1]),
            Laplace(t(0.0), inputs[1]),
        ):
            losses = fenchel_young(BetaGaussian(t(0.0), inputs[0], alpha), target)
            assert (losses >= 0).all()
            for gradient in torch.autograd.grad(losses.nan_to_num(posinf=0).sum(), inputs):
                assert not gradient.isnan().any()

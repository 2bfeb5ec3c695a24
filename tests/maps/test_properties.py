"""Properties that hold for every input, tried on the ones hypothesis finds worst."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.optimize import linprog

import contmax

pytestmark = pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
# The backend fixture only chooses which code runs; it holds no state that examples could share.
lenient = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

alphas = st.sampled_from([0.5, 0.9, 1.0, 1.0001, 1.2, 1.5, 1.7, 2.0, 2.5, 4.0])
anything = st.floats(-1e4, 1e4, allow_nan=False, width=32, allow_subnormal=True)
ties = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-30, -1e4])
scores = st.one_of(
    arrays(np.float64, array_shapes(min_dims=1, max_dims=2, max_side=20), elements=anything),
    arrays(np.float64, array_shapes(min_dims=1, max_dims=2, max_side=40), elements=ties),
    arrays(np.float64, array_shapes(min_dims=1, max_dims=1, max_side=60), elements=st.floats(-3, 3)),
)


@lenient
@given(scores, alphas)
def test_is_a_distribution_that_preserves_order(x, alpha):
    x = torch.from_numpy(x)
    p = contmax.entmax(x, alpha)
    assert (p >= 0).all()
    torch.testing.assert_close(p.sum(-1), torch.ones_like(p.sum(-1)), rtol=0, atol=1e-12)
    order = x.argsort(-1)
    assert (p.gather(-1, order).diff(dim=-1) >= -1e-14).all()


@lenient
@given(scores, alphas, st.randoms(use_true_random=False))
def test_permutation_equivariant(x, alpha, random):
    x = torch.from_numpy(x)
    order = list(range(x.shape[-1]))
    random.shuffle(order)
    torch.testing.assert_close(
        contmax.entmax(x, alpha)[..., order], contmax.entmax(x[..., order], alpha), rtol=1e-9, atol=1e-12
    )


@lenient
@given(scores, alphas, st.integers(-1000, 1000))
def test_shift_invariant(x, alpha, shift):
    x = torch.from_numpy(np.round(x, 6))
    # For α > 2 a rounding r of the scores moves probabilities by r^{1/(α−1)}.
    atol = 1e-12 if alpha <= 2 else (2e3 * 2.3e-16 * alpha) ** (1 / (alpha - 1))
    torch.testing.assert_close(
        contmax.entmax(x + shift, alpha), contmax.entmax(x, alpha), rtol=1e-8, atol=max(atol, 1e-11)
    )


@lenient
@given(scores, st.floats(1.01, 3.0), st.floats(0.01, 1.0))
def test_support_shrinks_as_alpha_grows(x, alpha, more):
    x = torch.from_numpy(x)
    low, high = contmax.entmax(x, alpha), contmax.entmax(x, alpha + more)
    # An entry on the very edge of the support may fall either way by rounding.
    assert (high[low == 0] <= 1e-7).all()


@lenient
@given(scores, alphas)
def test_float32_agrees_with_float64_of_the_rounded_input(x, alpha):
    x = torch.from_numpy(x.astype(np.float32))
    assert (contmax.entmax(x, alpha).double() - contmax.entmax(x.double(), alpha)).abs().max() <= 1e-6


@lenient
@given(scores, alphas)
def test_satisfies_the_optimality_conditions(x, alpha):
    """p = exp_{2−α}(x − A) with one A per slice: log_{2−α}(p) − x is constant on the support and larger off it."""
    x = torch.from_numpy(x).reshape(-1, x.shape[-1])[:1]
    p = contmax.entmax(x, alpha)
    inside = p > 1e-6
    level = (contmax.deformed.log_beta(p.clamp(min=1e-300), 2 - alpha) - x)[inside]
    assert (level - level[0]).abs().max() <= 1e-9 * (1 + x.abs().max()) * 1e3


@lenient
@given(scores, alphas)
def test_gradients_are_finite_and_sum_to_zero(x, alpha):
    x = torch.from_numpy(x).requires_grad_()
    (g,) = torch.autograd.grad(
        contmax.entmax(x, alpha), x, torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape)
    )
    assert g.isfinite().all()
    assert (g.sum(-1).abs() <= 1e-9 * (1 + g.abs().sum(-1))).all()


@pytest.mark.parametrize("alpha", [0.5, 1.0001, 1.5, 2.0, 3.0])
@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(1000),
        torch.full((64,), 1e30),
        torch.tensor([1e30, -1e30, 0.0]),
        torch.full((5,), 1e-42),
        torch.tensor([3.0]),
        torch.cat([torch.zeros(1), torch.full((999,), -1e-8)]),
        -torch.logspace(-8, 1, 500),
        -torch.arange(1, 4097).log(),
    ],
    ids=["equal", "huge and equal", "huge range", "denormal", "one", "almost tied", "geometric", "harmonic"],
)
def test_adversarial_slices(x, alpha):
    x = x.requires_grad_()
    p = contmax.entmax(x, alpha)
    assert (p.double() - contmax.entmax(x.double(), alpha)).abs().max() <= 1e-6
    assert abs(p.double().sum().item() - 1) <= 1e-6
    (g,) = torch.autograd.grad(p[0] ** 2, x)
    assert g.isfinite().all()


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0])
def test_largest_tsallis_entropy_among_equal_moments(alpha):
    """The paper's appendix on Tsallis' principle: of all p with one mean of φ = (t, t²), entmax(θᵀφ) has the largest.

    Rivals are corners of the set of distributions with this mean, found by linear programs with random costs, and what
    lies between them and the map.
    """
    t = torch.linspace(-1, 1, 21, dtype=torch.float64)
    features = torch.stack([torch.ones_like(t), t, t * t])
    best = contmax.entmax(features.T @ torch.tensor([0.0, 0.4, -1.0], dtype=torch.float64), alpha)
    moments = features @ best
    own = -float(contmax.deformed.tsallis_negentropy(best, alpha))
    generator = torch.Generator().manual_seed(5)
    for _ in range(40):
        cost = torch.randn(len(t), generator=generator, dtype=torch.float64)
        found = linprog(cost.numpy(), A_eq=features.numpy(), b_eq=moments.numpy(), bounds=(0, None))
        rival = torch.from_numpy(found.x)
        torch.testing.assert_close(features @ rival, moments, rtol=0, atol=1e-9)
        for share in (1.0, 0.1, 1e-3):
            between = (1 - share) * best + share * rival
            assert -float(contmax.deformed.tsallis_negentropy(between, alpha)) < own + 1e-14

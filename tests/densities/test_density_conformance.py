"""What every density promises, for every density there is (density_families.py)."""

import math
import pickle

import pytest
import torch
from density_families import ALL, LINE, SEVERAL, each, inner_points
from draw_shares import shares
from line_quadrature import expectation, mass_below
from scipy.stats import kstest
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from contmax.densities import Density, Mixture

MIXTURES = [family for family in ALL if "mixture" in family.name]
SINGLE = [family for family in ALL if family not in MIXTURES]
LINE_SINGLE = [family for family in LINE if family not in MIXTURES]


def outer_points(p: Density) -> Tensor:
    return p.mean + 1e3 * (1 + p.stddev)


@each(LINE)
def test_integrates_to_one(family):
    p = family.make()
    torch.testing.assert_close(expectation(p, torch.ones_like), torch.ones(p.batch_shape).double(), rtol=1e-10, atol=0)


@each(LINE)
def test_moments_and_entropy(family):
    p = family.make()
    torch.testing.assert_close(expectation(p, lambda t: t), p.mean, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(expectation(p, lambda t: (t - p.mean) ** 2), p.variance, rtol=1e-8, atol=0)
    entropy = expectation(p, lambda t: -torch.where(p.density(t) > 0, p.log_prob(t), 0.0))
    torch.testing.assert_close(entropy, p.entropy(), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(p.stddev, p.variance.sqrt())


@each([f for f in LINE_SINGLE if f.name not in ("uniform", "tensor-alpha") and not f.name.startswith("almost")])
def test_negentropy_and_conjugate(family):
    """Ω_α by definition, and Ω* = E_p[f] − Ω_α with the score read off the density."""
    p = family.make()
    alpha = p.alpha
    if alpha == 1:
        negentropy = expectation(p, p.log_prob)
        mean_score = negentropy + p.normalizer
    else:
        power = expectation(p, lambda t: p.density(t) ** (alpha - 1))
        negentropy = (power - 1) / (alpha * (alpha - 1))
        mean_score = p.threshold + power / (alpha - 1)
    torch.testing.assert_close(p.tsallis_negentropy(), negentropy, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(p.conjugate(), mean_score - negentropy, rtol=1e-9, atol=1e-9)


@each(LINE)
def test_cdf_is_the_integral_of_the_density(family):
    p = family.make()
    t = inner_points(p)
    torch.testing.assert_close(p.cdf(t), mass_below(p, t), rtol=1e-9, atol=1e-11)
    t.requires_grad_()
    (slope,) = torch.autograd.grad(p.cdf(t).sum(), t)
    torch.testing.assert_close(slope, p.density(t), rtol=1e-10, atol=1e-12)


@each(LINE)
def test_icdf_inverts_the_cdf(family):
    p = family.make()
    q = torch.tensor([1e-9, 0.02, 0.3, 0.5, 0.77, 0.999], dtype=torch.float64).reshape(-1, *[1] * len(p.batch_shape))
    torch.testing.assert_close(p.cdf(p.icdf(q)), q.expand(-1, *p.batch_shape), rtol=1e-7, atol=1e-13)
    ends = p.icdf(torch.tensor([0.0, 1.0], dtype=torch.float64).reshape(-1, *[1] * len(p.batch_shape)))
    torch.testing.assert_close(
        p.cdf(ends), torch.stack((torch.zeros(p.batch_shape), torch.ones(p.batch_shape))).double()
    )
    assert p.icdf(torch.tensor(-0.1).double()).isnan().all()
    assert p.icdf(torch.tensor(1.1).double()).isnan().all()


@each(ALL)
def test_off_the_support_nothing_and_no_gradient(family):
    parameters = family.tensors(requires_grad=True)
    p = family.build(**parameters)
    t = outer_points(p).detach().requires_grad_()
    log_p = p.log_prob(t)
    if torch.isfinite(log_p).all():
        assert p.support.check(t).all(), "a density that is positive everywhere has all points in its support"
        return
    off = torch.isinf(log_p)
    assert (log_p[off] == -math.inf).all()
    assert (p.density(t)[off] == 0).all()
    assert not p.support.check(t)[off].any()
    outputs = [log_p[off].clamp(min=-1e30).sum(), p.density(t)[off].sum()]
    if not p.event_shape:
        assert (p.cdf(t)[off] == 1).all()
        outputs.append(p.cdf(t)[off].sum())
    for output in outputs:
        for grad in torch.autograd.grad(output, (t, *parameters.values()), retain_graph=True, allow_unused=True):
            assert grad is None or (grad == 0).all()


@each(ALL)
def test_infinite_points(family):
    """Nothing lies there, and nothing moves with them: no formula of ∞·0 is met, forward or backward."""
    for dtype in (torch.float32, torch.float64):
        parameters = family.tensors(dtype, requires_grad=True)
        p = family.build(**parameters)
        middle = p.mean.detach()
        t = torch.stack(
            (middle, torch.full_like(middle, math.inf), torch.full_like(middle, -math.inf))
        ).requires_grad_()
        assert (p.log_prob(t)[1:] == -math.inf).all()
        outputs = [p.log_prob(t)[:1], p.density(t)]
        if not p.event_shape:
            assert (p.cdf(t)[1] == 1).all()
            assert (p.cdf(t)[2] == 0).all()
            outputs.append(p.cdf(t))
        for output in outputs:
            *others, in_points = torch.autograd.grad(
                output.sum(), (*parameters.values(), t), allow_unused=True, retain_graph=True
            )
            assert all(grad is None or torch.isfinite(grad).all() for grad in others)
            assert torch.isfinite(in_points).all()
            assert (in_points[1:] == 0).all()


@each(ALL)
def test_support_contains_the_draws(family):
    for dtype in (torch.float64, torch.float32):
        p = family.make(dtype)
        torch.manual_seed(0)
        t = p.sample((20000,))
        assert t.dtype == dtype
        assert p.support.check(t).all()
        assert torch.isfinite(p.log_prob(t)).all()


@each(LINE)
def test_draws_follow_the_cdf(family):
    """Kolmogorov–Smirnov on 10⁵ draws; with fresh seeds a correct sampler fails with probability 1e-3."""
    p = family.make()
    torch.manual_seed(0)
    u = shares(p.cdf, p.sample((100_000 // max(1, p.batch_shape.numel()),)))
    assert kstest(u, "uniform").pvalue > 1e-3


@each([family for family in SEVERAL if family not in MIXTURES])
def test_draws_follow_the_radial_law(family):
    """As above for the Mahalanobis radius; the whitened directions have mean zero and covariance I/N."""
    p = family.make()
    torch.manual_seed(0)
    t = p.sample((100_000 // max(1, p.batch_shape.numel()),))
    u = shares(p.radial_cdf, p.mahalanobis_sq(t).sqrt())
    assert kstest(u, "uniform").pvalue > 1e-3
    white = torch.linalg.solve_triangular(p.scale_tril, (t - p.loc).unsqueeze(-1), upper=False).squeeze(-1)
    direction = white / torch.linalg.vector_norm(white, dim=-1, keepdim=True)
    second = (direction.unsqueeze(-1) * direction.unsqueeze(-2)).mean(0)
    n = t.shape[-1]
    assert direction.mean(0).abs().max() < 5 / math.sqrt(len(t) * n)
    torch.testing.assert_close(second, (torch.eye(n).double() / n).expand(second.shape), rtol=0, atol=5e-3)


@each(SEVERAL)
def test_moments_of_draws(family):
    p = family.make()
    torch.manual_seed(0)
    t = p.sample((50_000,))
    torch.testing.assert_close(t.mean(0), p.mean, rtol=0, atol=0.03)
    centred = t - t.mean(0)
    covariance = (centred.unsqueeze(-1) * centred.unsqueeze(-2)).mean(0)
    torch.testing.assert_close(covariance, p.covariance_matrix, rtol=0.05, atol=0.03 * float(p.covariance_matrix.max()))
    torch.testing.assert_close(p.variance, p.covariance_matrix.diagonal(dim1=-2, dim2=-1))
    if family not in MIXTURES:
        entropy = -p.log_prob(t).mean(0)
        torch.testing.assert_close(entropy, p.entropy(), rtol=0.01, atol=0.01)


@each(ALL)
def test_gradients_of_log_prob(family):
    parameters = family.tensors(requires_grad=True)
    t = inner_points(family.make(), count=2).requires_grad_()

    def log_prob(*values: Tensor) -> Tensor:
        *rest, points = values
        return family.build(**dict(zip(parameters, map(_as_given, parameters, rest), strict=True))).log_prob(points)

    assert gradcheck(log_prob, (*parameters.values(), t), fast_mode=True)
    assert gradgradcheck(log_prob, (*parameters.values(), t), fast_mode=True)


def _as_given(name: str, value: Tensor) -> Tensor:
    """A matrix stays symmetric when an entry is perturbed."""
    return 0.5 * (value + value.mT) if name in ("scale_matrix", "precision_matrix") else value


@each(LINE)
def test_gradients_of_cdf_and_icdf(family):
    parameters = family.tensors(requires_grad=True)
    t = inner_points(family.make(), count=2).requires_grad_()
    q = family.make().cdf(t).detach().clamp(0.05, 0.95).requires_grad_()

    def build(values: tuple[Tensor, ...]) -> Density:
        return family.build(**dict(zip(parameters, values, strict=True)))

    assert gradcheck(lambda *v: build(v[:-1]).cdf(v[-1]), (*parameters.values(), t), fast_mode=True)
    assert gradcheck(lambda *v: build(v[:-1]).icdf(v[-1]), (*parameters.values(), q), fast_mode=True)


@each(ALL)
def test_draws_are_differentiable(family):
    p = family.build(**family.tensors(requires_grad=True))
    if not p.has_rsample:
        with pytest.raises(NotImplementedError):
            p.rsample()
        return
    parameters = family.tensors(requires_grad=True)
    torch.manual_seed(0)
    draws = family.build(**parameters).rsample((7,))
    assert draws.shape == (7, *p.batch_shape, *p.event_shape)
    shift, *others = torch.autograd.grad(draws.sum(), [parameters["loc"], *parameters.values()])
    if not isinstance(p, Mixture):
        torch.testing.assert_close(shift, torch.full_like(shift, 7.0))
    assert all(torch.isfinite(grad).all() for grad in others)


@each([family for family in SINGLE if not {"scale_matrix", "scale_tril", "precision_matrix"} & set(family.parameters)])
def test_two_backward_passes(family):
    """Nothing that belongs to a graph is kept between calls: only a matrix is factorised once, at construction."""
    parameters = family.tensors(requires_grad=True)
    p = family.build(**parameters)
    for _ in range(2):
        (p.log_prob(p.mean.detach()).sum() + p.entropy().sum() + p.variance.sum()).backward()


@each(ALL)
def test_vmap(family):
    parameters = family.tensors()
    t = inner_points(family.make(), count=1)[0]

    def log_prob(shift: Tensor, factor: Tensor) -> Tensor:
        moved = {**parameters, "loc": parameters["loc"] + shift}
        name = next(n for n in parameters if n.startswith(("scale", "precision")))
        moved[name] = moved[name] * factor
        p = family.build(**moved)
        return p.log_prob(t) + (p.cdf(t) if not p.event_shape else 0.0)

    shifts = torch.tensor([0.0, 0.01, -0.02]).double()
    factors = torch.tensor([1.0, 1.1, 0.95]).double()
    expected = torch.stack([log_prob(shift, factor) for shift, factor in zip(shifts, factors, strict=True)])
    torch.testing.assert_close(torch.func.vmap(log_prob)(shifts, factors), expected, rtol=1e-10, atol=1e-12)


@each(ALL)
def test_forward_mode_agrees_with_reverse_mode(family):
    parameters = family.tensors()
    t = inner_points(family.make(), count=1)[0]

    def values(*parts: Tensor) -> Tensor:
        p = family.build(**dict(zip(parameters, parts, strict=True)))
        return p.log_prob(t) + (p.cdf(t) if not p.event_shape else 0.0)

    parts = tuple(parameters.values())
    _, forward = torch.func.jvp(values, parts, tuple(torch.ones_like(part) for part in parts))
    reverse = torch.func.jacrev(values, argnums=tuple(range(len(parts))))(*parts)
    total = sum(block.flatten(forward.ndim).sum(-1) for block in reverse)
    torch.testing.assert_close(forward, total, rtol=1e-9, atol=1e-10)


@each(ALL)
def test_expand(family):
    p = family.make()
    shape = torch.Size((3, *p.batch_shape))
    wide = p.expand(shape)
    t = inner_points(p, count=1)[0]
    assert type(wide) is type(p)
    assert wide.batch_shape == shape
    assert wide.sample((2,)).shape == (2, *shape, *p.event_shape)
    torch.testing.assert_close(wide.log_prob(t), p.log_prob(t).expand(shape))
    torch.testing.assert_close(wide.variance, p.variance.expand(wide.variance.shape))
    torch.testing.assert_close(wide.covariance_matrix, p.covariance_matrix.expand(wide.covariance_matrix.shape))


@each([family for family in ALL if family.name != "generated-by-callable"])
def test_pickle(family):
    p = family.make()
    again = pickle.loads(pickle.dumps(p))
    t = inner_points(p)
    torch.testing.assert_close(again.log_prob(t), p.log_prob(t), rtol=0, atol=0)


@each(ALL)
def test_repr_names_the_class(family):
    p = family.make()
    assert repr(p).startswith(type(p).__name__ + "(")


@each(ALL)
def test_float32_follows_float64(family):
    single = family.make(torch.float32)
    exact = family.build(**{name: value.float().double() for name, value in family.tensors().items()})
    t = inner_points(single)
    peak = exact.density(exact.mean).clamp(min=1.0)
    density = single.density(t)
    assert density.dtype == torch.float32
    torch.testing.assert_close(density.double(), exact.density(t.double()), rtol=2e-5, atol=2e-6 * float(peak.max()))
    torch.testing.assert_close(single.variance.double(), exact.variance, rtol=1e-5, atol=1e-7)
    if not single.event_shape:
        torch.testing.assert_close(single.cdf(t).double(), exact.cdf(t.double()), rtol=1e-5, atol=1e-6)
        assert single.icdf(torch.tensor(0.3)).dtype == torch.float32


@each([family for family in SINGLE if "generated" not in family.name])
def test_bfloat16_is_rounded_once(family):
    half = {name: value.bfloat16() for name, value in family.tensors().items()}
    p, wide = family.build(**half), family.build(**{name: value.float() for name, value in half.items()})
    t = p.mean
    for got, expected in [
        (p.log_prob(t), wide.log_prob(t.float())),
        (p.density(t), wide.density(t.float())),
        (p.variance, wide.variance),
        (p.entropy(), wide.entropy()),
        (p.conjugate(), wide.conjugate()),
    ]:
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, expected.bfloat16())

"""A symmetric family of one's own: a law and an index are all that has to be written."""

import math

import pytest
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution, Normal, constraints, kl_divergence

import contmax
from contmax.densities import LineDensity, LineLaw, Triangular
from contmax.losses import fenchel_young

F64 = torch.float64


class CosineLaw(LineLaw):
    reach = math.pi

    def tail(self, depth):
        inner = depth.clamp(max=math.pi)
        return (math.pi - inner - torch.sin(inner)) / (2 * math.pi)


class Cosine(LineDensity):
    """(1 + cos x)/2π on |x| < π."""

    alpha = 2.0

    def law(self):
        return CosineLaw()


class LogisticLaw(LineLaw):
    def tail(self, depth):
        return torch.sigmoid(-depth)


class Logistic(LineDensity):
    alpha = 1.0

    def law(self):
        return LogisticLaw()


FAMILIES = {"cosine": (Cosine, scipy.stats.cosine), "logistic": (Logistic, scipy.stats.logistic)}


def each_family():
    return pytest.mark.parametrize(("family", "reference"), FAMILIES.values(), ids=FAMILIES)


def made(family):
    return family(torch.tensor([0.3, -1.0], dtype=F64), torch.tensor([0.7, 2.0], dtype=F64))


@each_family()
def test_everything_follows_from_the_tail(family, reference):
    p = made(family)
    frozen = reference(loc=p.loc.numpy(), scale=p.scale.numpy())
    t = p.loc + p.scale * torch.tensor([[-2.9], [-0.4], [0.0], [1.3], [3.0]], dtype=F64)
    q = torch.tensor([[1e-6], [0.2], [0.5], [0.93]], dtype=F64)
    for ours, theirs in (
        (p.density(t), frozen.pdf(t.numpy())),
        (p.cdf(t), frozen.cdf(t.numpy())),
        (p.icdf(q), frozen.ppf(q.numpy())),
        (p.variance, frozen.var()),
        (p.entropy(), frozen.entropy()),
    ):
        torch.testing.assert_close(ours, torch.as_tensor(theirs, dtype=F64), rtol=1e-9, atol=1e-10)


@each_family()
def test_draws_have_the_law_and_gradients(family, reference):
    torch.manual_seed(0)
    scale = torch.tensor(0.7, dtype=F64, requires_grad=True)
    draws = family(torch.tensor(0.3, dtype=F64), scale).rsample((4000,))
    assert scipy.stats.kstest(draws.detach().numpy(), reference(loc=0.3, scale=0.7).cdf).pvalue > 1e-3
    (slope,) = torch.autograd.grad(draws.sum(), scale)
    torch.testing.assert_close(slope, ((draws - 0.3) / scale).sum().detach())


@each_family()
def test_it_is_a_prediction_of_its_score(family, reference):
    p = made(family)
    t = p.loc + p.scale * torch.linspace(-3.0, 3.0, 7, dtype=F64)[:, None]
    torch.testing.assert_close(contmax.deformed.exp_beta(p.score(t) - p.normalizer, 2 - p.alpha), p.density(t))
    # Zero for the density itself, positive for another, and twice differentiable in both.
    assert fenchel_young(p, p).abs().max() < 1e-9
    other = family(p.loc + 0.2, 1.3 * p.scale)
    assert (fenchel_young(p, other) > 1e-4).all()
    torch.testing.assert_close(fenchel_young(p, t), p.conjugate() - p.score(t))

    def loss(m, s, m_q, s_q):
        return fenchel_young(family(m, s), family(m_q, s_q))

    inputs = [torch.tensor(x, dtype=F64, requires_grad=True) for x in (0.3, 0.7, 0.1, 0.5)]
    assert gradcheck(loss, inputs, fast_mode=True)
    assert gradgradcheck(loss, inputs, atol=1e-4, fast_mode=True)


@each_family()
def test_it_meets_bases_and_other_densities(family, reference):
    p = family(torch.tensor(0.4, dtype=F64), torch.tensor(0.1, dtype=F64))
    basis = contmax.basis.GaussianBasis(torch.tensor([0.2, 0.5], dtype=F64), torch.tensor([0.01, 0.3], dtype=F64))
    frozen = reference(loc=0.4, scale=0.1)
    ends = (0.4 - 0.1 * math.pi, 0.4 + 0.1 * math.pi) if family is Cosine else (-math.inf, math.inf)
    for k, r in enumerate(contmax.expectation(p, basis).tolist()):
        truth = frozen.expect(lambda t, k=k: basis(torch.tensor(t, dtype=F64))[k].item(), lb=ends[0], ub=ends[1])
        assert r == pytest.approx(truth, rel=1e-6)
    q = Normal(torch.tensor(0.3, dtype=F64), torch.tensor(0.4, dtype=F64))
    truth = frozen.expect(lambda t: frozen.logpdf(t) - q.log_prob(torch.tensor(t)).item(), lb=ends[0], ub=ends[1])
    assert kl_divergence(p, q).item() == pytest.approx(truth, rel=1e-6)


def test_supports_and_copies():
    p = Cosine(torch.zeros(3), 1.0)
    assert p.support.check(torch.tensor([3.0, 3.2, -4.0])).tolist() == [True, False, False]
    assert Logistic(0.0, 1.0).support is constraints.real
    assert p.expand((2, 3)).variance.shape == (2, 3)
    assert p.half_width.dtype == torch.float32
    assert "Cosine(loc: (3,), scale: (3,))" in repr(p)
    with pytest.raises(ValueError, match="scale must be positive"):
        Cosine(0.0, -1.0)


def test_a_score_of_ones_own_is_used():
    class Tent(Triangular):
        def score(self, value):
            return 1.0 - (value - self.loc).abs() / self.scale

    # The conjugate is still that of the score without the constant, so the loss is less by it.
    observed = torch.tensor([0.2, 3.0], dtype=F64)
    ours, theirs = (fenchel_young(kind(torch.tensor(0.0, dtype=F64), 1.0), observed) for kind in (Tent, Triangular))
    torch.testing.assert_close(ours + 1.0, theirs)


def test_a_density_that_says_nothing_of_its_place_is_refused():
    class Somewhere(Distribution):
        support = constraints.real
        arg_constraints = {}  # noqa: RUF012

        def log_prob(self, value):
            return torch.zeros_like(value)

    with pytest.raises(NotImplementedError, match=r"landmarks\(\)"):
        contmax.expectation(_with_mean(Somewhere)(), contmax.basis.PowerBasis(1))


def _with_mean(kind):
    """`expectation` asks for the mean to know the dtype; everything else stays unknown."""
    return type("Nowhere", (kind,), {"mean": property(lambda self: torch.zeros(()))})

"""Bad input to predictions: one helpful line each; and input that looks bad but has an answer."""

import warnings

import pytest
import torch

import contmax
from contmax.domains import Box, Interval, Knots, Nodes

F64 = torch.float64
UNIT = Interval(torch.tensor(0.0, dtype=F64), 1.0)
SQUARE = Box(torch.zeros(2, dtype=F64), torch.ones(2, dtype=F64), resolution=2)
KNOTS = Knots(torch.tensor([0.0, 0.5, 1.0], dtype=F64))
NODES = Nodes(torch.tensor([0.0, 0.5, 1.0], dtype=F64))
EVERYWHERE = [UNIT, SQUARE, KNOTS, NODES]


def slope(t):
    return t if t.dim() == 1 else t.sum(-1)


def says(kind, *words):
    """An error whose message is one line that holds all the words."""
    pattern = "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(kind, match=f"^{pattern}[^\n]*$")


@pytest.mark.parametrize("domain", EVERYWHERE, ids=repr)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_scores_must_be_numbers(domain, bad):
    def score(t):
        values = slope(t).clone()
        values[1] = bad
        return values

    with says(ValueError, "score must not be NaN or", "got 1 such", "−inf is allowed"):
        contmax.regularized_prediction(score, domain)


@pytest.mark.parametrize("domain", EVERYWHERE, ids=repr)
def test_scores_must_line_up_with_the_points(domain):
    with says(ValueError, "one value per point", "got shape"):
        contmax.regularized_prediction(lambda t: slope(t)[:-1], domain)
    with says(ValueError, "one value per point", r"got shape \(\)"):
        contmax.regularized_prediction(lambda t: slope(t).sum(), domain)
    with says(ValueError, "one value per point"):
        contmax.regularized_prediction(torch.zeros(7, dtype=F64), domain)
    with says(TypeError, "floating-point", "int64"):
        contmax.regularized_prediction(lambda t: slope(t).long(), domain)
    with says(TypeError, "complex"):
        contmax.regularized_prediction(lambda t: slope(t) * 1j, domain)
    with says(TypeError, "must return a tensor", "float"):
        contmax.regularized_prediction(lambda t: 1.0, domain)
    with says(ValueError, "alpha", "does not broadcast"):
        contmax.regularized_prediction(lambda t: slope(t).expand(3, -1), domain, torch.tensor([1.5, 2.0], dtype=F64))


@pytest.mark.parametrize("domain", EVERYWHERE, ids=repr)
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive_and_finite(domain, alpha):
    for given in (alpha, torch.tensor(alpha, dtype=F64), torch.tensor([2.0, alpha], dtype=F64)):
        with says(ValueError, "alpha must be positive and finite", "got"):
            contmax.regularized_prediction(slope, domain, given)


def test_things_of_the_wrong_kind():
    with pytest.raises(Exception, match=r"alpha|type"):
        contmax.regularized_prediction(slope, UNIT, "2")
    with says(TypeError, "floating-point"):
        contmax.regularized_prediction(slope, UNIT, torch.tensor(2))
    with pytest.raises(Exception, match=r"domain|type"):
        contmax.regularized_prediction(slope, (0.0, 1.0))
    with pytest.raises(Exception, match=r"score|type"):
        contmax.regularized_prediction("t", UNIT)


def test_no_density_exists_below_one_for_a_peak_too_sharp():
    # At its pole p is |f|^{−1/(1−α)}: for f = −√|t| and α = 0.2 the mass around it is finite, for f = −t² it is not.
    domain = Interval(torch.tensor(0.0, dtype=F64), 1.0, resolution=2)
    with says(ValueError, "no density exists", "alpha", "Pass a larger alpha"):
        contmax.regularized_prediction(lambda t: -100 * (t - 0.4).abs().sqrt(), domain, 0.2)
    smooth = contmax.regularized_prediction(lambda t: -1e6 * (t - 0.4).square(), domain, 0.7)
    known = contmax.densities.BetaGaussian(torch.tensor(0.4, dtype=F64), torch.tensor(2e6, dtype=F64).rsqrt(), 0.7)
    torch.testing.assert_close(smooth.density(known.loc), known.density(known.loc), rtol=1e-10, atol=0)


@pytest.mark.parametrize("domain", EVERYWHERE, ids=repr)
@pytest.mark.parametrize(("alpha", "level"), [(0.6, 0.0), (1.0, -1e6), (1.5, 1e6), (2.0, 1e6), (5.0, 0.0)])
def test_constant_scores_are_uniform(domain, alpha, level):
    volume = 3.0 if domain is NODES else 1.0
    p = contmax.regularized_prediction(lambda t: 0 * slope(t) + level, domain, alpha)
    point = torch.full(tuple(p.event_shape), 0.5, dtype=F64)
    assert p.density(point).item() == pytest.approx(1 / volume, rel=1e-9)
    torch.testing.assert_close(p.mean, point, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("domain", EVERYWHERE, ids=repr)
@pytest.mark.parametrize("alpha", [0.7, 1.0, 2.0, 3.0])
def test_a_score_of_minus_infinity_everywhere_has_no_density_but_no_nan(domain, alpha):
    theta = torch.tensor(1.0, dtype=F64, requires_grad=True)

    def score(t):
        both = torch.stack([torch.full_like(slope(t), -torch.inf), slope(t)])
        return theta * torch.where(both > -torch.inf, both, 0) + torch.where(both > -torch.inf, 0, -torch.inf)

    p = contmax.regularized_prediction(score, domain, alpha)
    point = torch.full((2, *p.event_shape), 0.5, dtype=F64)
    assert p.density(point)[0] == 0
    assert p.density(point)[1] > 0 or alpha > 1
    assert p.normalizer[0] == -torch.inf
    assert p.threshold[0] == -torch.inf
    assert p.mean.isfinite().all()
    assert p.entropy().isfinite().all()
    draws = p.sample((3,))
    assert draws[:, 0].isnan().all()
    assert draws[:, 1].isfinite().all()
    (gradient,) = torch.autograd.grad(p.mean.sum() + p.density(point).sum(), theta)
    assert gradient.isfinite()
    if not p.event_shape:
        assert p.cdf(point)[0] == 0
        assert p.icdf(torch.full((2,), 0.5, dtype=F64)).isnan().tolist() == [True, False]


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0])
def test_minus_infinity_on_a_part_of_the_domain(alpha):
    p = contmax.regularized_prediction(lambda t: torch.where(t < 0.3, -torch.inf, -t), UNIT, alpha)
    q = contmax.regularized_prediction(lambda t: -t, Interval(torch.tensor(0.3, dtype=F64), 1.0), alpha)
    assert p.normalizer.item() == pytest.approx(q.normalizer.item(), rel=1e-9)
    assert p.variance.item() == pytest.approx(q.variance.item(), rel=1e-9)
    assert p.density(torch.tensor(0.29, dtype=F64)).item() == 0
    assert p.support.cells.tolist()[0] == pytest.approx(q.support.cells.tolist()[0], abs=1e-9)
    assert p.sample((1000,)).min() >= 0.3 - 1e-9
    # Knots: a dead knot kills both segments beside it.
    at = torch.tensor([0.0, 0.1, 0.3, 1.0], dtype=F64)
    r = contmax.regularized_prediction(torch.tensor([0.0, -torch.inf, -0.3, -1.0], dtype=F64), Knots(at), alpha)
    assert r.normalizer.item() == pytest.approx(q.normalizer.item(), rel=1e-12)
    assert r.density(torch.tensor([0.05, 0.2], dtype=F64)).tolist() == [0, 0]
    # Nodes: as a mask of the finite map.
    f = torch.tensor([0.3, -torch.inf, 0.1], dtype=F64)
    torch.testing.assert_close(
        contmax.regularized_prediction(f, NODES, alpha).probabilities, contmax.entmax(f, alpha), rtol=1e-9, atol=1e-12
    )


def test_minus_infinity_on_a_part_of_a_box():
    p = contmax.regularized_prediction(lambda t: torch.where(t[:, 0] < 0.5, -torch.inf, 0.0), SQUARE, 2.0)
    torch.testing.assert_close(p.mean, torch.tensor([0.75, 0.5], dtype=F64), rtol=1e-6, atol=1e-6)
    assert p.support.cells.tolist() == [[False, False], [True, True]]
    assert p.sample((500,))[:, 0].min() >= 0.5 - 1e-9


@pytest.mark.parametrize("alpha", [0.9, 1.0, 1.3, 1.5, 2.0, 3.0, 8.0])
@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_huge_and_tiny_ranges(alpha, size):
    theta = torch.tensor(size, dtype=F64, requires_grad=True)
    cases = [
        contmax.regularized_prediction(
            lambda t: theta * (t - 0.4).cos(), Interval(torch.tensor(-size, dtype=F64), size), alpha
        )
        if size < 1
        else contmax.regularized_prediction(lambda t: theta * (t - 0.4).cos(), UNIT, alpha),
        contmax.regularized_prediction(theta * torch.tensor([-1.0, 1.0, 0.3], dtype=F64), KNOTS, alpha),
        contmax.regularized_prediction(theta * torch.tensor([-1.0, 1.0, 0.3], dtype=F64), NODES, alpha),
    ]
    for p in cases:
        values = [p.mean, p.variance, p.entropy(), p.normalizer, p.density(torch.tensor(0.4, dtype=F64)), p.conjugate()]
        assert torch.stack(values).isfinite().all()
        # A derivative that is not finite would not let the sum of all be.
        (gradient,) = torch.autograd.grad(sum(values), theta)
        assert gradient.isfinite()


def test_a_domain_a_million_long():
    known = contmax.densities.TruncatedParabola(torch.tensor(12345.0, dtype=F64), torch.tensor(1e4, dtype=F64))
    p = contmax.regularized_prediction(
        lambda t: -0.5 * ((t - 12345.0) / 1e4) ** 2, Interval(torch.tensor(-1e6, dtype=F64), 1e6), 2.0
    )
    assert p.variance.item() == pytest.approx(known.variance.item(), rel=1e-10)
    assert p.threshold.item() == pytest.approx(known.threshold.item(), rel=1e-10)


def test_low_precision():
    points = torch.linspace(0, 1, 5)
    with says(TypeError, "float32 or float64", "float16"):
        Knots(points.half())
    with says(TypeError, "float32 or float64", "bfloat16"):
        Interval(torch.tensor(0.0, dtype=torch.bfloat16), 1.0)
    # A score in half precision on a float32 domain: computed from its values as they are, returned in float32.
    half = contmax.regularized_prediction(points.half(), Nodes(points), 2.0)
    full = contmax.regularized_prediction(points.half().float(), Nodes(points), 2.0)
    assert half.mean.dtype == torch.float32
    assert torch.equal(half.probabilities, full.probabilities)
    p = contmax.regularized_prediction(lambda t: -(t**2), Interval(-2.0, 2.0))
    exact = contmax.regularized_prediction(lambda t: -(t**2), Interval(torch.tensor(-2.0, dtype=F64), 2.0))
    assert p.mean.dtype == p.density(torch.tensor(0.1)).dtype == p.sample().dtype == torch.float32
    assert p.density(torch.tensor(0.1, dtype=F64)).dtype == F64
    assert p.variance.item() == pytest.approx(exact.variance.item(), rel=1e-6)
    assert p.threshold.item() == pytest.approx(exact.threshold.item(), rel=1e-6)
    # A score with float64 parameters is read at float64 points.
    wide = contmax.regularized_prediction(lambda t: -(t**2) * torch.ones((), dtype=F64).reshape(1), Interval(-2.0, 2.0))
    assert wide.variance.dtype == F64
    assert wide.variance.item() == pytest.approx(exact.variance.item(), rel=1e-12)


def test_points_of_the_wrong_shape():
    p = contmax.regularized_prediction(slope, SQUARE)
    with says(ValueError, "2 coordinates", r"got shape \(3,\)"):
        p.density(torch.zeros(3, dtype=F64))
    with says(ValueError, "coordinates"):
        p.log_prob(torch.zeros((), dtype=F64))
    q = contmax.regularized_prediction(lambda t: slope(t).expand(3, -1), UNIT)
    for method in (q.density, q.log_prob, q.cdf, q.icdf):
        with says(ValueError, "value"):
            method(torch.zeros(2, dtype=F64))
    with pytest.raises(NotImplementedError, match="several coordinates"):
        contmax.regularized_prediction(torch.zeros(2), Nodes(torch.zeros(2, 2) + torch.arange(2.0)[:, None])).cdf(
            torch.zeros(2)
        )
    with says(ValueError, "one value, or one vector, per point"):
        q.expectation(lambda t: t.sum())


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for domain in EVERYWHERE:
            repr(contmax.regularized_prediction(slope, domain, 1.5))

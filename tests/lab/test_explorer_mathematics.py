"""What the explorer computes in the page, evaluated in a browser, against the library and scipy."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

import contmax
from chromium import needs_chromium
from contmax.densities import BetaGaussian, MultivariateBetaGaussian

pytestmark = needs_chromium

ALPHAS = [0.51, 0.6, 0.9, 1 - 1e-6, 1.0, 1 + 1e-6, 1.1, 4 / 3, 1.5, 1.9, 2.0, 3.0, 10.0, 500.0, math.inf]
LOW_ON_THE_LINE = [0.3434, 0.4]


@pytest.fixture(scope="module")
def page(chromium):
    """An empty page beside the modules, which need no server."""
    from contmax_lab.explorer._pages import assets

    def answer(route):
        name = route.request.url.rpartition("/")[2]
        kind = "text/javascript" if name.endswith(".js") else "text/html"
        route.fulfill(body=assets().get(name, "<title>empty</title>"), content_type=kind)

    shown = chromium.new_page()
    shown.route("http://explorer.invalid/**", answer)
    shown.goto("http://explorer.invalid/")
    yield shown
    shown.close()


@pytest.fixture(scope="module")
def call(page):
    """Calls a function of a module once for each list of arguments."""

    def evaluate(module, function, arguments):
        script = f"calls => import('./{module}.js').then(m => calls.map(given => m.{function}(...given)))"
        return page.evaluate(script, arguments)

    return evaluate


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def line_members():
    places = [(0.3, 0.7), (-2.0, 0.15), (1.1, 3.0)]
    return [(a, [mu], [[s * s]]) for a in [*LOW_ON_THE_LINE, *ALPHAS] for mu, s in places]


def plane_members():
    return [
        (a, list(mu), [[r * math.cos(t) ** 2 + math.sin(t) ** 2, (r - 1) * math.sin(t) * math.cos(t)],
                       [(r - 1) * math.sin(t) * math.cos(t), r * math.sin(t) ** 2 + math.cos(t) ** 2]])
        for a in ALPHAS
        for mu, r, t in [((0.3, -0.7), 0.04, 0.5), ((0.0, 1.0), 9.0, -1.2)]
    ]  # fmt: skip


def in_page(member):
    alpha, loc, scale = member
    return {"alpha": alpha, "loc": loc, "scale": scale}


def in_library(member):
    alpha, loc, scale = member
    if len(loc) == 1:
        return BetaGaussian(double(loc[0]), double(scale[0][0]).sqrt(), alpha)
    return MultivariateBetaGaussian(double(loc), double(scale), alpha)


def in_one_batch(members):
    """Members with the same α."""
    (alpha,) = {member[0] for member in members}
    loc, scale = double([member[1] for member in members]), double([member[2] for member in members])
    if loc.shape[-1] == 1:
        return BetaGaussian(loc[:, 0], scale[:, 0, 0].sqrt(), alpha)
    return MultivariateBetaGaussian(loc, scale, alpha)


@pytest.mark.parametrize("members", [line_members(), plane_members()], ids=["line", "plane"])
def test_densities_have_the_numbers_of_the_library(call, members):
    profiles = call("beta_gaussian", "profile", [[in_page(m)] for m in members])
    spreads = call("beta_gaussian", "covariance", [[in_page(m)] for m in members])
    assert len(profiles) > 25
    for member, found, spread in zip(members, profiles, spreads, strict=True):
        p = in_library(member)
        expected = {
            "radius": p.radius,
            "threshold": p.threshold,
            "normalizer": p.normalizer,
            "varianceFactor": p.variance_factor,
            "entropy": p.entropy(),
            "tsallisNegentropy": p.tsallis_negentropy(),
            "conjugate": p.conjugate(),
            "logPeak": p.log_prob(p.loc),
        }
        for name, value in expected.items():
            assert found[name] == pytest.approx(float(value), rel=1e-10, abs=1e-11), (name, member)
        covariance = p.variance.reshape(1, 1) if len(member[1]) == 1 else p.covariance_matrix
        np.testing.assert_allclose(spread, covariance.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("members", [line_members(), plane_members()], ids=["line", "plane"])
def test_heights_are_those_of_the_library_inside_at_and_beyond_the_edge(call, members):
    offsets = [0.0, 0.1, -0.5, 1.0, 2.5, 40.0]
    points = [(m, [x + d for x in m[1]]) for m in members for d in offsets]
    found = call("beta_gaussian", "densityAt", [[in_page(m), point] for m, point in points])
    heights = iter(found)
    for member in members:
        where = double(member[1]) + double(offsets)[:, None]
        expected = in_library(member).density(where if len(member[1]) > 1 else where[:, 0]).tolist()
        assert list(itertools.islice(heights, len(offsets))) == pytest.approx(expected, rel=1e-9, abs=1e-12), member
    assert 0.0 in found


@pytest.mark.parametrize("members", [line_members(), plane_members()], ids=["line", "plane"])
def test_losses_between_all_members_are_those_of_the_library(call, members):
    by_alpha = {}
    for member in members:
        by_alpha.setdefault(member[0], []).append(member)
    infinite = 0
    for first, second in itertools.product([*by_alpha.values()][::2], by_alpha.values()):
        pairs = list(itertools.product(first, second))
        found = call("beta_gaussian", "fenchelYoung", [[in_page(p), in_page(q)] for p, q in pairs])
        expected = contmax.losses.fenchel_young(*(in_one_batch(side) for side in zip(*pairs, strict=True))).tolist()
        infinite += math.inf in expected
        # Near α = 1 the page takes a difference over α − 1 = 1e-6.
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-8), pairs[0]
    assert infinite


@pytest.mark.parametrize("alpha", [0.4, 0.8, 1.0, 1.2, 2.0, 20.0, math.inf])
def test_draws_follow_the_density(call, alpha):
    (points,) = call("sampling", "draws", [[in_page((alpha, [0.4], [[0.49]])), 4000, 3]])
    p = in_library((alpha, [0.4], [[0.49]]))
    shares = p.cdf(double(points).squeeze(-1)).numpy()
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.5, 2.0, math.inf])
def test_regions_of_the_plane_hold_their_share_and_draws_fall_into_them(call, alpha):
    member = (alpha, [0.4, -0.2], [[0.5, 0.2], [0.2, 0.3]])
    half, most = call("beta_gaussian", "massRadius", [[in_page(member), share] for share in (0.5, 0.9)])
    p = in_library(member)
    edge = double(member[2])
    volume = 2 * math.pi * float(torch.linalg.det(edge)) ** 0.5

    def ring(r):
        point = p.loc + r * torch.linalg.cholesky(edge)[:, 0]
        return volume * r * float(p.density(point))

    for radius, share in ((half, 0.5), (most, 0.9)):
        assert scipy.integrate.quad(ring, 0, radius, epsabs=1e-10)[0] == pytest.approx(share, abs=1e-8)
    (points,) = call("sampling", "draws", [[in_page(member), 4000, 5]])
    distance = p.mahalanobis_sq(double(points)).sqrt()
    assert float((distance < half).double().mean()) == pytest.approx(0.5, abs=0.035)
    assert float((distance < most).double().mean()) == pytest.approx(0.9, abs=0.025)
    centred = double(points) - p.loc
    inside = centred[distance < most]
    # Rotated as Σ is: the correlation of what lies in a region is that of Σ.
    correlation = float(torch.corrcoef(inside.T)[0, 1])
    assert correlation == pytest.approx(0.2 / math.sqrt(0.15), abs=0.06)


SCORES = [
    [2.0, 1.5, 1.2, 0.3, -0.5, -1.0],
    [0.0],
    [1.0, 1.0, 1.0, 1.0],
    [50.0, -50.0, 49.9],
    [1e-8, 0.0, -1e-8, 3e-9],
    [0.1 * math.sin(7 * i) + i / 16 for i in range(16)],
]


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.9, 0.9999, 1.0, 1.0001, 1.2, 1.5, 1.75, 2.0, 2.5, 4.0])
def test_maps_of_scores_and_their_jacobians_are_those_of_the_library(call, alpha):
    cases = [(scores, alpha, temperature) for scores in SCORES for temperature in (0.1, 1.0, 10.0)]
    found = call("entmax", "entmax", [list(case) for case in cases])
    jacobians = call("entmax", "entmaxJacobian", [[p, a, t] for p, (_, a, t) in zip(found, cases, strict=True)])
    for (scores, a, temperature), p, jacobian in zip(cases, found, jacobians, strict=True):
        # As often as there are scores, so that one pass back gives every row of the Jacobian.
        given = double(scores).repeat(len(scores), 1).requires_grad_()
        expected = contmax.entmax(given, alpha=a, temperature=temperature)
        # Above α = 2 a probability grows like a root of its distance from zero, and roots magnify rounding.
        np.testing.assert_allclose(p, expected[0].detach().numpy(), atol=1e-10 if a <= 2 else 1e-6)
        (exact,) = torch.autograd.grad(expected, given, torch.eye(len(scores), dtype=given.dtype))
        np.testing.assert_allclose(jacobian, exact.numpy(), rtol=1e-6, atol=1e-7 / temperature)
    assert 0.0 in found[0] or alpha <= 1.2


@pytest.mark.parametrize("dim", [1, 2])
def test_the_slider_of_alpha_reaches_from_the_least_to_infinity(call, dim):
    places = [i / 200 for i in range(201)]
    alphas = call("alpha_scale", "alphaAt", [[place, dim] for place in places])
    assert alphas == sorted(alphas)
    assert dim / (dim + 2) < alphas[0] < dim / (dim + 2) + 0.02
    assert alphas[-1] == math.inf
    assert {1.0, 2.0} <= set(alphas)
    back = call("alpha_scale", "placeOfAlpha", [[alpha, dim] for alpha in alphas])
    assert back == pytest.approx(places, abs=1e-12)
    # Whatever the slider gives, the library takes.
    for alpha in alphas:
        in_library((float(alpha), [0.0] * dim, np.eye(dim).tolist()))


def test_what_is_typed_is_understood_or_refused(call):
    typed = ["2", " 1.5 ", "4/3", "inf", "∞", "0.1", "", "x", "1/0", "1/2/3", "-1", "NaN", "0.5e0"]
    found = call("alpha_scale", "readAlpha", [[word, 0.34] for word in typed])
    assert found == [2, 1.5, 4 / 3, math.inf, math.inf, None, None, None, None, None, None, None, 0.5]
    assert call("entmax", "readScores", [["1, −2;3\n4", 4]]) == [{"scores": [1, -2, 3, 4]}]
    problems = call("entmax", "readScores", [["", 4], ["1 2 3 4 5", 4], ["1 <b>", 4], ["1 1e9", 4], ["inf", 4]])
    assert all("problem" in found for found in problems)


def test_modules_can_be_joined_because_no_two_names_are_alike():
    from contmax_lab.explorer._pages import bundled

    clash = {"a.js": 'import { b } from "./b.js";\nconst c = 1;\n', "b.js": "export const b = 1;\nconst c = 2;\n"}
    with pytest.raises(ValueError, match=r"c is declared in b\.js and in a\.js"):
        bundled("a.js", clash)

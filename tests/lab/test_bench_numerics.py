"""The suite of errors: its brute force against scipy, and that a wrong expectation misses its target."""

import math

import pytest
import scipy.integrate
import scipy.stats
import torch

import contmax
from contmax_lab.bench import QUICK, _numerics

LOC, SCALE, CENTRE, WIDTH = (torch.tensor([x]) for x in (0.375, 0.25, 0.625, 0.125))


def test_values_and_derivatives_are_those_of_scipy():
    def by_scipy(loc, scale):
        half = (1.5 * scale**2) ** (1 / 3)
        psi = scipy.stats.norm(0.625, 0.125).pdf
        p = scipy.stats.beta(2, 2, loc - half, 2 * half).pdf
        return scipy.integrate.quad(lambda t: p(t) * psi(t), loc - half, loc + half, epsabs=1e-13, epsrel=1e-13)[0]

    found = _numerics.line_values(LOC, SCALE, CENTRE, WIDTH, 2.0)
    step = 1e-4
    assert found.value.item() == pytest.approx(by_scipy(0.375, 0.25), rel=1e-12)
    by_loc = (by_scipy(0.375 + step, 0.25) - by_scipy(0.375 - step, 0.25)) / (2 * step)
    by_scale = (by_scipy(0.375, 0.25 + step) - by_scipy(0.375, 0.25 - step)) / (2 * step)
    assert found.by_loc.item() == pytest.approx(by_loc, rel=1e-4)
    assert found.by_scale.item() == pytest.approx(by_scale, rel=1e-4)
    printed = _numerics.printed_form(*(x.double() for x in (LOC, SCALE, CENTRE, WIDTH)))
    assert printed.item() == pytest.approx(found.value.item(), rel=1e-12)


def test_the_gaussian_is_the_limit_of_its_neighbours():
    gaussian = _numerics.line_values(LOC, SCALE, CENTRE, WIDTH, 1.0)
    nearly = _numerics.line_values(LOC, SCALE, CENTRE, WIDTH, 1.0001)
    for name in ("value", "by_loc", "by_scale", "largest"):
        assert getattr(nearly, name).item() == pytest.approx(getattr(gaussian, name).item(), rel=1e-3)


def test_on_the_disk_all_mass_is_counted():
    class Wide(contmax.basis.MultivariateGaussianBasis):
        """So wide that its expectation is its height."""

    basis = Wide(torch.zeros(1, 2), 1e8 * torch.eye(2).unsqueeze(0))
    found = _numerics.disk_values(torch.zeros(1, 2), torch.diag(torch.tensor([0.5, 0.1])), basis, 1.5, (20, 40))
    assert found.item() == pytest.approx(1 / (2 * math.pi * 1e8), rel=1e-6)


def test_a_wrong_expectation_misses_its_target(monkeypatch):
    right = contmax.expectation
    monkeypatch.setattr(_numerics, "_ALPHAS", {"2": 2.0})
    assert all(figure.reached for figure in _numerics._by_alpha(3))
    monkeypatch.setattr(contmax, "expectation", lambda p, basis: right(p, basis) * (1 + 1e-5))
    missed = [figure.column for figure in _numerics._by_alpha(3) if not figure.reached]
    assert {"r, float32", "r, float64"} <= set(missed)


def test_the_suite_is_known():
    assert _numerics.NUMERICS.name == "numerics"
    assert next(iter(_numerics.NUMERICS.figures(QUICK))).row == "below 0.1"

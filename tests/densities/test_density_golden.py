"""Reference values for densities: β-Gaussians, triangular, location–scale."""

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from contmax.densities import BetaGaussian, LocationScale, MultivariateBetaGaussian, Triangular

DTYPES = [torch.float64, torch.float32]


def tensor(value: str | list, dtype: torch.dtype) -> Tensor:
    return torch.tensor(_numbers(value), dtype=dtype)


def _numbers(value: str | list) -> float | list:
    return [_numbers(item) for item in value] if isinstance(value, list) else float(value)


def check(got: Tensor, expected: str | list | Tensor, dtype: torch.dtype, *, atol: float = 0.0, rtol: float = 1e-12):
    wanted = expected if isinstance(expected, Tensor) else tensor(expected, torch.float64)
    tolerance = {"rtol": rtol, "atol": 1e-13 * atol} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6 * atol}
    assert got.dtype == dtype
    torch.testing.assert_close(got.detach().double(), wanted, **tolerance)


def rounding_of_alpha(alpha: str) -> float:
    """How far a quantity of relative size 1/(α−1) moves when the decimal α is rounded to float64."""
    exact = Fraction(alpha)
    return float(abs(Fraction(float(alpha)) - exact) / abs(exact - 1)) if exact != 1 else 0.0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["alpha-number", "alpha-tensor"])
def test_beta_gaussians(golden, dtype, as_tensor):
    for case in golden["alpha_gaussian"]:
        given, wanted = case["inputs"], case["outputs"]
        alpha = torch.tensor(float(given["alpha"]), dtype=torch.float64) if as_tensor else float(given["alpha"])
        loc, matrix, t = (tensor(given[name], dtype) for name in ("mu", "Sigma", "t"))
        if dtype == torch.float32:
            wanted = _values(MultivariateBetaGaussian(loc.double(), matrix.double(), alpha), t.double(), wanted)
        _compare(MultivariateBetaGaussian(loc, matrix, alpha), t.requires_grad_(), wanted, given["alpha"], dtype)


def _values(p: MultivariateBetaGaussian, t: Tensor, wanted: dict) -> dict:
    """The float64 result of rounded inputs, which is what a float32 result is compared with."""
    t = t.clone().requires_grad_()
    values = {**_summary(p), "Delta": p.mahalanobis_sq(t), "pdf": p.density(t), "log_pdf": p.log_prob(t)}
    if "dlogpdf_dt" in wanted:
        values["dlogpdf_dt"] = torch.autograd.grad(p.log_prob(t), t)[0]
    return {name: values[name].detach() for name in wanted if name in values}


def _summary(p: MultivariateBetaGaussian) -> dict[str, Tensor]:
    values = {
        "threshold": p.threshold,
        "A": p.normalizer,
        "var_factor": p.variance_factor,
        "tsallis_negentropy": p.tsallis_negentropy(),
        "conjugate": p.conjugate(),
        "shannon_entropy": p.entropy(),
    }
    index = float(p.alpha)
    if index > 1:
        values["radius_sq"] = p.radius.square()
    if index < 2 or not isinstance(p.alpha, Tensor):
        values["escort_mass"] = p.power_integral(2 - p.alpha)
    return values


def _compare(p: MultivariateBetaGaussian, t: Tensor, wanted: dict, alpha: str, dtype: torch.dtype) -> None:
    slack = rounding_of_alpha(alpha) if dtype == torch.float64 else 0.0
    for name, got in _summary(p).items():
        if name in wanted:
            check(got, wanted[name], dtype, atol=1.0, rtol=1e-12 + 2 * slack)
    if "dof" in wanted and dtype == torch.float64:
        # A Student-t of ν degrees of freedom: with c² = 2λ, Cov = c²Σ/(ν−2).
        check(p.variance_factor * (float(wanted["dof"]) - 2), 2 * p.threshold, dtype)
    peak = float(p.density(p.loc))
    delta = float(p.mahalanobis_sq(t).detach())
    # The relative distance from the edge of the support is what rounding of t and Σ is divided by.
    edge = abs(1 - delta / float(p.radius) ** 2) if math.isfinite(float(p.radius)) else 1.0
    check(p.mahalanobis_sq(t), wanted["Delta"], dtype, rtol=1e-10)
    check(p.density(t), wanted["pdf"], dtype, atol=peak * max(1.0, 0.05 / edge), rtol=1e-10)
    if "log_pdf" in wanted:
        check(p.log_prob(t), wanted["log_pdf"], dtype, atol=max(1.0, 0.5 / edge), rtol=1e-10 + 2 * slack)
    else:
        assert p.log_prob(t) == -math.inf
    if "dlogpdf_dt" in wanted:
        (slope,) = torch.autograd.grad(p.log_prob(t), t)
        scale = float(slope.abs().max())
        check(slope, wanted["dlogpdf_dt"], dtype, atol=scale * max(1.0, 0.5 / edge), rtol=1e-10)


def test_derivative_of_the_radius_in_alpha(golden):
    for case in golden["alpha_gaussian"]:
        if "d_log_radius_sq_d_alpha" not in case["outputs"]:
            continue
        given = case["inputs"]
        alpha = torch.tensor(float(given["alpha"]), dtype=torch.float64, requires_grad=True)
        p = MultivariateBetaGaussian(*(tensor(given[name], torch.float64) for name in ("mu", "Sigma")), alpha)
        (slope,) = torch.autograd.grad(2 * p.radius.log(), alpha)
        rtol = 1e-11 + 2 * rounding_of_alpha(given["alpha"])
        check(slope, case["outputs"]["d_log_radius_sq_d_alpha"], torch.float64, atol=1.0, rtol=rtol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cdf_of_beta_gaussians(golden, dtype):
    for case in golden["alpha_gaussian"]:
        if "cdf" not in case["outputs"]:
            continue
        given = case["inputs"]
        loc, t = (tensor(given[name][0], dtype) for name in ("mu", "t"))
        scale = tensor(given["Sigma"][0][0], dtype).sqrt()
        for alpha in (float(given["alpha"]), torch.tensor(float(given["alpha"]), dtype=torch.float64)):
            p = BetaGaussian(loc, scale, alpha)
            check(p.cdf(t), case["outputs"]["cdf"], dtype, atol=1.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_triangular(golden, dtype):
    for case in golden["triangular"]:
        given, wanted = case["inputs"], case["outputs"]
        p = Triangular(tensor(given["mu"], dtype), tensor(given["b"], dtype))
        peak = float(p.density(p.loc))
        check(p.density(tensor(given["t"], dtype)), wanted["pdf"], dtype, atol=peak)
        check(p.threshold, wanted["threshold"], dtype)
        check(p.half_width, wanted["half_width"], dtype)
        check(p.tsallis_negentropy(), wanted["tsallis_negentropy"], dtype, atol=1.0)
        check(p.conjugate(), wanted["conjugate"], dtype, atol=1.0)
        check(p.variance, wanted["variance"], dtype)


GENERATORS = {
    "cube": lambda x: x**3 / 6,
    "square": lambda x: x**2 / 2,
    "cosh": torch.cosh,
    "quartic": lambda x: x**4 / 12 + x**2,
    "exp": torch.exp,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("as_callable", [False, True], ids=["by-name", "by-callable"])
def test_location_scale(golden, dtype, as_callable):
    for case in golden["location_scale"]:
        given, wanted = case["inputs"], case["outputs"]
        g = GENERATORS[given["g"]] if as_callable else given["g"]
        p = LocationScale(tensor(given["mu"], dtype), tensor(given["sigma"], dtype), g)
        check(p.radius, wanted["a"], dtype)
        check(p.half_width, wanted["half_width"], dtype)
        check(p.threshold, wanted["threshold"], dtype)
        check(p.density(tensor(given["t"], dtype)), wanted["pdf"], dtype, atol=float(p.density(p.loc)))


def test_the_cases_can_fail(golden):
    """A wrong index is noticed."""
    case = golden["triangular"][1]
    p = Triangular(tensor(case["inputs"]["mu"], torch.float64), 1.0001 * tensor(case["inputs"]["b"], torch.float64))
    with pytest.raises(AssertionError):
        check(p.threshold, case["outputs"]["threshold"], torch.float64)

"""Bases: values against torch.distributions and scipy, structure, constructors, contracts shared by all."""

import math
import sys

import pytest
import torch
from scipy.interpolate import BSpline
from torch.distributions import MultivariateNormal, Normal

from contmax import basis

F64 = torch.float64
FULL = torch.tensor([[[0.04, 0.01], [0.01, 0.09]], [[0.02, -0.01], [-0.01, 0.03]], [[0.05, 0.0], [0.0, 0.05]]])
LINE = {
    "gaussian": lambda: basis.GaussianBasis.linspace(8, (0.1, 0.5)),
    "gaussian learned": lambda: basis.GaussianBasis.linspace(8, 0.2, learnable=True),
    "sine": lambda: basis.SineBasis.harmonics(5),
    "cosine": lambda: basis.CosineBasis.harmonics(5),
    "power": lambda: basis.PowerBasis(4),
    "rectangular": lambda: basis.RectangularBasis(torch.linspace(0, 1, 6)),
    "spline": lambda: basis.BSplineBasis.clamped(7),
}
SPACE = {
    "grid": lambda: basis.MultivariateGaussianBasis.grid(3, 0.2),
    "two widths": lambda: basis.MultivariateGaussianBasis.grid((2, 3), (0.1, 0.4)),
    "space": lambda: basis.MultivariateGaussianBasis.grid(2, 0.3, dim=3),
    "full": lambda: basis.MultivariateGaussianBasis(torch.rand(3, 2), FULL),
    "learned": lambda: basis.MultivariateGaussianBasis(torch.rand(3, 2), FULL, learnable=True),
}


@pytest.mark.parametrize("make", [*LINE.values(), *SPACE.values()], ids=[*LINE, *SPACE])
def test_contracts_of_every_basis(make):
    psi = make().double()
    t = torch.rand(2, 5, dtype=F64) if psi.event_dim == 1 else torch.rand(2, 5, psi.event_dim, dtype=F64)
    values = psi(t)
    assert values.shape == (2, 5, psi.num_functions)
    assert values.isfinite().all()
    assert psi(t[:0]).shape == (0, 5, psi.num_functions)
    torch.testing.assert_close(torch.func.vmap(psi)(t), values)
    copy = make().double()
    copy.load_state_dict(psi.state_dict())
    torch.testing.assert_close(copy(t), values)
    assert str(psi.num_functions) in repr(psi)
    assert psi.needs_gradient == any(True for _ in psi.parameters())
    if psi.needs_gradient:
        values.sum().backward()
        assert all(p.grad.isfinite().all() and p.grad.abs().sum() > 0 for p in psi.parameters())


def test_gaussian_values():
    psi = basis.GaussianBasis(torch.tensor([0.1, 0.7]), torch.tensor([0.2, 0.05]))
    t = torch.rand(11)
    expected = Normal(psi.loc, psi.scale).log_prob(t[:, None]).exp()
    torch.testing.assert_close(psi(t), expected)


@pytest.mark.parametrize("make", SPACE.values(), ids=SPACE)
def test_multivariate_gaussian_values(make):
    psi = make().double()
    t = torch.rand(7, psi.event_dim, dtype=F64)
    expected = MultivariateNormal(psi.loc, psi.covariance_matrix).log_prob(t[:, None]).exp()
    torch.testing.assert_close(psi(t), expected)


def test_the_papers_constructors():
    line = basis.GaussianBasis.linspace(64, (0.1, 0.5))
    torch.testing.assert_close(line.loc, torch.linspace(0, 1, 32).repeat(2))
    torch.testing.assert_close(line.scale, torch.tensor([0.1] * 32 + [0.5] * 32))
    plane = basis.MultivariateGaussianBasis.grid(10, 0.001**0.5)
    assert plane.num_functions == 100
    torch.testing.assert_close(plane.loc[1], torch.tensor([0.0, 1 / 9]))
    torch.testing.assert_close(plane.covariance_matrix[5], 0.001 * torch.eye(2))
    assert basis.GaussianBasis.linspace(1, 0.3).loc.tolist() == [0.5]


def test_a_basis_knows_its_structure():
    grid, widths, full = SPACE["grid"](), SPACE["two widths"](), SPACE["full"]()
    assert grid.is_isotropic
    assert grid.is_diagonal
    assert widths.is_isotropic
    assert widths.axes is None
    assert not full.is_diagonal
    (x, sx), (y, sy) = grid.axes
    t = torch.rand(4, 2)
    product = Normal(x, sx).log_prob(t[:, :1]).exp()[:, :, None] * Normal(y, sy).log_prob(t[:, 1:]).exp()[:, None]
    torch.testing.assert_close(product.reshape(4, -1), grid(t))


def test_splines_against_scipy():
    for degree in (0, 1, 2, 3):
        psi = basis.BSplineBasis.clamped(7, degree).double()
        t = torch.linspace(0, 1, 33, dtype=F64)
        expected = BSpline.design_matrix(t.numpy(), psi.knots.numpy(), degree).toarray()
        torch.testing.assert_close(psi(t), torch.from_numpy(expected))
        assert (psi(torch.tensor([-0.1, 1.1], dtype=F64)) == 0).all()


def test_rectangles_integrate_to_one_and_break_at_their_edges():
    psi = basis.RectangularBasis(torch.tensor([0.0, 0.2, 0.5, 1.0], dtype=F64))
    t = (torch.arange(1000, dtype=F64) + 0.5) / 1000
    torch.testing.assert_close(psi(t).mean(0), torch.ones(3, dtype=F64))
    assert psi(torch.tensor([0.0, 0.2, 1.0], dtype=F64)).argmax(-1).tolist() == [0, 1, 2]
    assert psi(torch.tensor([0.0, 0.2, 1.0], dtype=F64)).amax(-1).tolist() == [1 / 0.2, 1 / (0.5 - 0.2), 1 / 0.5]
    assert psi.breakpoints.tolist() == [0.0, 0.2, 0.5, 1.0]
    assert LINE["spline"]().breakpoints.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert LINE["gaussian"]().breakpoints is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: basis.GaussianBasis(torch.zeros(2), torch.tensor([0.1, -0.3])), "min -0.3"),
        (lambda: basis.GaussianBasis(torch.zeros(2, 2), 0.1), "MultivariateGaussianBasis"),
        (lambda: basis.GaussianBasis(torch.tensor([math.nan]), 0.1), "finite"),
        (lambda: basis.GaussianBasis.linspace(7, (0.1, 0.5)), "multiple of the number of widths"),
        (lambda: basis.GaussianBasis.linspace(4, 0.1, low=1.0, high=0.0), "below high"),
        (lambda: basis.MultivariateGaussianBasis(torch.zeros(2, 2), -torch.eye(2)), "positive definite"),
        (lambda: basis.MultivariateGaussianBasis(torch.zeros(2, 2), torch.eye(3)), "shape"),
        (lambda: basis.MultivariateGaussianBasis.grid(3, 0.1)(torch.zeros(4, 3)), "points must have shape"),
        (lambda: basis.MultivariateGaussianBasis.grid((3, 3, 3), 0.1), "one per axis"),
        (lambda: basis.PowerBasis(0), "at least 1"),
        (lambda: basis.RectangularBasis(torch.tensor([0.0, 0.0])), "increasing"),
        (lambda: basis.BSplineBasis(torch.tensor([0.0, 1.0]), 3), "non-decreasing"),
        (lambda: basis.BSplineBasis.clamped(2, 3), "at least degree"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("BSplineBasis", r"got shape \(\). BSplineBasis.clamped\(num\) makes"),
        ("RectangularBasis", r"at least two increasing numbers; got shape \(\)"),
        ("CosineBasis", r"Use CosineBasis.harmonics\(num\)"),
    ],
)
def test_a_number_of_functions_is_not_mistaken_for_their_places(family, message, monkeypatch):
    # Users have no run-time type checker, which would be the first to complain.
    if "jaxtyping" in sys.modules:
        monkeypatch.setattr(sys.modules["jaxtyping"].config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        getattr(basis, family)(8)


def test_splines_break_at_each_knot_once_whatever_their_multiplicity():
    for knots in ([0.0, 0.0, 0.3, 0.3, 0.3, 0.6, 0.8, 0.8], [0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0, 1.0]):
        psi = basis.BSplineBasis(knots, 1)
        assert torch.equal(psi.breakpoints, torch.tensor(knots).unique())
    other = basis.BSplineBasis([0.0, 0.1, 0.2, 0.2, 0.2], 1)
    other.load_state_dict(psi.state_dict())
    assert torch.equal(other.breakpoints, psi.breakpoints)
    assert len(basis.BSplineBasis(torch.empty(5, device="meta"), 1).breakpoints) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_their_centres_functions_are_no_denormal_numbers(dtype):
    """They take a CPU ten times as long, and so do products of them in the fit of a signal."""
    line = basis.GaussianBasis.covering(64).to(dtype)
    plane = basis.MultivariateGaussianBasis.covering(12).to(dtype)
    t = torch.rand(500, dtype=dtype)
    for values in (line(t), plane(torch.stack([t, t.flip(0)], -1)), line(t.requires_grad_()).detach()):
        assert values.min() < 1e-30 * values.max()
        assert not ((values > 0) & (values < torch.finfo(dtype).tiny)).any()
    products = line(t.detach().double()).detach()
    products = products.unsqueeze(-1) * products.unsqueeze(-2)
    assert not ((products > 0) & (products < torch.finfo(torch.float64).tiny)).any()


def test_without_gradients_functions_have_the_same_values():
    psi, t = basis.GaussianBasis.covering(8).double(), torch.linspace(-1, 2, 50, dtype=torch.float64)
    before = t.clone()
    plain = psi(t)
    assert torch.equal(t, before)
    assert torch.equal(plain, psi(t.requires_grad_()))
    expected = torch.distributions.Normal(psi.loc, psi.scale).log_prob(before[:, None]).exp()
    torch.testing.assert_close(plain, expected)


def test_waves_stand_over_a_period():
    for kind in (basis.SineBasis, basis.CosineBasis):
        torch.testing.assert_close(kind.harmonics(4, period=3600.0).bounds, (torch.tensor(0.0), torch.tensor(3600.0)))
        torch.testing.assert_close(kind.harmonics(4).bounds, (torch.tensor(0.0), torch.tensor(1.0)))
    torch.testing.assert_close(basis.CosineBasis.harmonics(1).bounds, (torch.tensor(0.0), torch.tensor(1.0)))

"""The unit of positions does not matter: a fit in seconds, days or kilometres is the fit on [0, 1]."""

import pytest
import torch

import contmax
from contmax.basis import BSplineBasis, CosineBasis, GaussianBasis, MultivariateGaussianBasis, RectangularBasis
from contmax.densities import MultivariateBetaGaussian, TruncatedParabola

F64 = torch.float64
UNITS = [(1e-6, 0.0), (1e-6, 3e-6), (60.0, 0.0), (3600.0, -1800.0), (86400.0, 7 * 86400.0), (1e9, 0.0), (1e9, 2e9)]
LINES = {
    "covering": lambda low, high: GaussianBasis.covering(16, low=low, high=high),
    "two widths": lambda low, high: GaussianBasis.linspace(
        16, (0.1 * (high - low), 0.5 * (high - low)), low=low, high=high
    ),
    "one function": lambda low, high: GaussianBasis.covering(1, low=low, high=high),
    "learnable": lambda low, high: GaussianBasis.covering(16, low=low, high=high, learnable=True),
    "histogram": lambda low, high: RectangularBasis(torch.linspace(low, high, 9, dtype=F64)),
    "splines": lambda low, high: BSplineBasis.clamped(9, low=low, high=high),
    "waves": lambda low, high: CosineBasis.harmonics(9, period=high - low),
}


def made_in_float64(make, *arguments):
    """A basis whose constants were never rounded to float32."""
    torch.set_default_dtype(F64)
    try:
        return make(*arguments)
    finally:
        torch.set_default_dtype(torch.float32)


def written_out(values, basis, positions, penalty):
    """B = (FᵀF + λI)⁻¹FᵀH with λ as it is given."""
    design = basis(positions.double()).double()
    gram = design.mT @ design + penalty * torch.eye(design.shape[-1], dtype=F64)
    return torch.linalg.solve(gram, design.mT @ values.double())


@pytest.mark.parametrize("penalty", [0.01, 2.0])
@pytest.mark.parametrize(
    "basis",
    [
        GaussianBasis.covering(1),
        GaussianBasis.covering(64),
        GaussianBasis.linspace(32, (0.1, 0.5)),
        GaussianBasis.linspace(8, 0.3, learnable=True),
        RectangularBasis(torch.linspace(0, 1, 9)),
        BSplineBasis.clamped(9),
    ],
)
def test_on_the_unit_interval_the_penalty_is_what_it_was(basis, penalty):
    values, t = torch.randn(50, 3, dtype=F64), (torch.arange(50, dtype=F64) + 0.5) / 50
    expected = written_out(values, basis, t, penalty)
    stream = contmax.SignalAccumulator(basis, penalty)
    stream.update(values, t)
    for signal in (
        contmax.fit_signal(values, basis, penalty=penalty),
        contmax.fit_signal(values, basis, penalty=penalty, mask=torch.ones(50, dtype=torch.bool)),
        contmax.fit_signal(values, basis, penalty=penalty, positions=t),
        stream.signal(),
    ):
        torch.testing.assert_close(signal.coefficients, expected, rtol=1e-7, atol=1e-9)


def test_on_the_unit_square_and_cube_the_penalty_is_what_it_was():
    for dim, grid in ((2, (9, 7)), (3, (4, 5, 3))):
        basis = MultivariateGaussianBasis.covering(4, dim=dim)
        values = torch.randn(torch.Size(grid).numel(), 3, dtype=F64)
        t = contmax.signal.observation_positions(len(values), None, grid, None, values)
        expected = written_out(values, basis, t, 0.01)
        for where in ({"grid": grid}, {"positions": t}):
            got = contmax.fit_signal(values, basis, **where).coefficients
            torch.testing.assert_close(got, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("unit", "begin"), UNITS)
@pytest.mark.parametrize("kind", LINES)
def test_a_line_in_any_unit(kind, unit, begin):
    if kind == "waves" and begin:
        pytest.skip("waves begin at 0")
    here, there = (made_in_float64(LINES[kind], low, high) for low, high in ((0.0, 1.0), (begin, begin + unit)))
    values, u = torch.randn(2, 60, 3, dtype=F64), torch.rand(2, 60, dtype=F64)
    mask = torch.rand(2, 60) > 0.2
    one = contmax.fit_signal(values, here, positions=u, mask=mask)
    hidden = torch.where(mask, begin + unit * u, torch.nan)
    other = contmax.fit_signal(values, there, positions=hidden, mask=mask)
    points = torch.linspace(0, 1, 21, dtype=F64)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(other(begin + unit * points), one(points), **close)
    torch.testing.assert_close(other.explained_variance(), one.explained_variance(), **close)
    half_width = torch.tensor([0.1, 0.3], dtype=F64)
    place = torch.tensor([0.4, 0.7], dtype=F64)
    contexts = [
        signal.expectation(TruncatedParabola.from_moments(low + scale * place, (scale * half_width) ** 2 / 5, 2.0))
        for signal, low, scale in ((one, 0.0, 1.0), (other, begin, unit))
    ]
    torch.testing.assert_close(*contexts, **close)
    stream, rest = (contmax.SignalAccumulator(there) for _ in range(2))
    stream.update(values[:, :30], hidden[:, :30], mask[:, :30])
    rest.update(values[:, 30:], hidden[:, 30:], mask[:, 30:])
    stream.merge(rest)
    torch.testing.assert_close(stream.signal()(begin + unit * points), one(points), **close)


@pytest.mark.parametrize(("unit", "begin"), UNITS)
@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("dim", [2, 3])
def test_plane_and_space_in_any_unit_of_each_axis(dim, learnable, unit, begin):
    here = MultivariateGaussianBasis.covering(4, dim=dim).double()
    sides = unit * torch.tensor([1.0, 0.3, 7.0], dtype=F64)[:dim]
    factor = torch.diag(sides)
    there = MultivariateGaussianBasis(
        begin + sides * here.loc, factor @ here.covariance_matrix @ factor, learnable=learnable
    )
    values, u = torch.randn(90, 3, dtype=F64), torch.rand(90, dim, dtype=F64)
    one = contmax.fit_signal(values, here, positions=u)
    other = contmax.fit_signal(values, there, positions=begin + sides * u)
    points = torch.rand(20, dim, dtype=F64)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(other(begin + sides * points), one(points), **close)
    covariance = 0.01 * torch.eye(dim, dtype=F64) + 0.002
    contexts = [
        signal.expectation(MultivariateBetaGaussian.from_moments(low + side @ points[0], side @ covariance @ side, 2.0))
        for signal, low, side in ((one, 0.0, torch.eye(dim, dtype=F64)), (other, begin, factor))
    ]
    torch.testing.assert_close(*contexts, **close)


@pytest.mark.parametrize(("unit", "begin"), UNITS)
def test_float32_in_any_unit(unit, begin):
    torch.manual_seed(0)
    values, u = torch.randn(3, 80, 4), torch.rand(3, 80)
    contexts, gradients = [], []
    for scale, low in ((1.0, 0.0), (unit, begin)):
        basis = GaussianBasis.covering(12, low=low, high=low + scale)
        positions = (low + scale * u).requires_grad_()
        place = torch.tensor([0.2, 0.5, 0.7]).requires_grad_()
        density = TruncatedParabola.from_moments(low + scale * place, torch.full((3,), (0.2 * scale) ** 2 / 5), 2.0)
        context = contmax.continuous_attention(values, density, basis, positions=positions)
        contexts.append(context)
        by_place, by_positions = torch.autograd.grad(context.square().sum(), (place, positions))
        gradients.append((by_place, scale * by_positions))
    torch.testing.assert_close(*contexts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)


def test_a_learned_basis_keeps_the_unit_it_was_made_with():
    basis = GaussianBasis.covering(8, high=3600.0, learnable=True).double()
    values, t = torch.randn(40, 2, dtype=F64), 3600 * torch.rand(40, dtype=F64)

    def fitted(loc, log_scale):
        signal = torch.func.functional_call(Fit(basis, t), {"basis.loc": loc, "basis.log_scale": log_scale}, (values,))
        return signal / 3600

    assert torch.autograd.gradcheck(fitted, (basis.loc, basis.log_scale), eps=1e-4, atol=1e-5)
    with torch.no_grad():
        basis.loc[-1] += 1800
    twin = GaussianBasis.covering(8, learnable=True).double()
    twin.load_state_dict(basis.state_dict())
    one, other = (contmax.fit_signal(values, psi, positions=t).coefficients for psi in (basis, twin))
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, written_out(values, basis, t, 0.01 / 3600**2))


class Fit(torch.nn.Module):
    def __init__(self, basis, t):
        super().__init__()
        self.basis, self.t = basis, t

    def forward(self, values):
        return contmax.fit_signal(values, self.basis, positions=self.t).coefficients


def test_a_state_dict_without_the_unit_is_that_of_the_unit_interval():
    basis = GaussianBasis.covering(8, learnable=True).double()
    with torch.no_grad():
        basis.loc[-1] += 0.3
    old = {name: basis.state_dict()[name] for name in ("loc", "log_scale")}
    twin = GaussianBasis.covering(8, learnable=True).double()
    twin.load_state_dict(old)
    values = torch.randn(40, 2, dtype=F64)
    t = (torch.arange(40, dtype=F64) + 0.5) / 40
    torch.testing.assert_close(contmax.fit_signal(values, twin).coefficients, written_out(values, twin, t, 0.01))


def test_a_fixed_basis_that_was_loaded_has_the_unit_of_what_was_loaded():
    basis, t = GaussianBasis.covering(8, high=3600.0).double(), 3600 * torch.rand(40, dtype=F64)
    twin = GaussianBasis.covering(8).double()
    twin.load_state_dict({name: basis.state_dict()[name] for name in ("loc", "fixed_scale")})
    values = torch.randn(40, 2, dtype=F64)
    one, other = (contmax.fit_signal(values, psi, positions=t).coefficients for psi in (basis, twin))
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_without_positions_the_unit_counts_too():
    """A basis on [−1, 2] covers the default positions; fits by the cache, with a mask and by hand agree."""
    basis, values = GaussianBasis.covering(12, low=-0.4, high=1.4).double(), torch.randn(2, 30, 3, dtype=F64)
    t = (torch.arange(30, dtype=F64) + 0.5) / 30
    expected = written_out(values, basis, t, 0.01 / 1.8**2)
    everything = torch.ones(2, 30, dtype=torch.bool)
    for given in ({}, {"positions": t}, {"mask": everything}, {"mask": everything, "positions": t}):
        torch.testing.assert_close(contmax.fit_signal(values, basis, **given).coefficients, expected)


@pytest.mark.graph
def test_compiled_code_has_the_unit_of_the_basis():
    basis, values = GaussianBasis.covering(12, low=-0.4, high=1.4), torch.randn(2, 30, 3)
    mask = torch.rand(2, 30) > 0.3
    for given in ({}, {"mask": mask}):

        @torch.compile(fullgraph=True, backend="aot_eager")
        def coefficients(values, given=given):
            return contmax.fit_signal(values, basis, **given).coefficients

        expected = contmax.fit_signal(values, basis, **given).coefficients
        torch.testing.assert_close(coefficients(values), expected)


def test_a_penalty_of_zero_stays_zero_in_any_unit():
    basis, t = GaussianBasis.covering(8, high=86400.0), 86400 * torch.rand(4)
    with pytest.raises(ValueError, match="penalty 0 is not unique"):
        contmax.fit_signal(torch.randn(4, 2), basis, positions=t, penalty=0.0)


class Hats(contmax.basis.Basis):
    """Triangles of area one, in the unit of a step; says so, as docs/write-your-own-basis.md has it."""

    def __init__(self, step):
        super().__init__()
        self.num_functions, self.step = 5, step

    @property
    def volume(self):
        return 4 * self.step

    def forward(self, t):
        offset = t.unsqueeze(-1) / self.step - torch.arange(5)
        return torch.relu(1 - offset.abs()) / self.step


def test_a_basis_of_one_s_own_may_say_its_volume():
    values, u = torch.randn(30, 2, dtype=F64), torch.rand(30, dtype=F64)
    one = contmax.fit_signal(values, Hats(0.25), positions=u)(u)
    other = contmax.fit_signal(values, Hats(900.0), positions=3600 * u)(3600 * u)
    torch.testing.assert_close(one, other)

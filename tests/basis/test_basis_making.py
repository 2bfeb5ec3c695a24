"""Making bases: where the observations are, on the meta device, and with the number of functions they say."""

import copy

import pytest
import torch

import contmax
from contmax import basis

F64 = torch.float64


class Wrong(basis.Basis):
    """Says one number of functions and returns another."""

    def __init__(self, said, returned):
        super().__init__()
        self.num_functions, self.returned = said, returned

    def forward(self, t):
        return t.unsqueeze(-1) * torch.ones(self.returned, device=t.device)


class Silent(basis.Basis):
    """Says no number at all."""

    def forward(self, t):
        return t.unsqueeze(-1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_basis_returns_what_it_says(device):
    with torch.device(device):
        assert Wrong(3, 3).num_functions == 3
        with pytest.raises(ValueError, match=r"Wrong has num_functions = 3 but returns shape \(3, 4\)"):
            Wrong(3, 4)
        for said in (0, -1, 2.0, True, None, "3"):
            with pytest.raises(TypeError, match=r"Wrong\.num_functions must be a positive int; got"):
                Wrong(said, 3)
        with pytest.raises(TypeError, match=r"Silent\.num_functions must be a positive int; got None"):
            Silent()


MAKERS = {
    "gaussian": lambda: basis.GaussianBasis.linspace(8, (0.1, 0.5)),
    "learned": lambda: basis.GaussianBasis.linspace(8, 0.2, learnable=True),
    "sine": lambda: basis.SineBasis.harmonics(5),
    "cosine": lambda: basis.CosineBasis.harmonics(5, learnable=True),
    "power": lambda: basis.PowerBasis(4),
    "rectangular": lambda: basis.RectangularBasis([0.0, 0.3, 1.0]),
    "spline": lambda: basis.BSplineBasis.clamped(7),
    "grid": lambda: basis.MultivariateGaussianBasis.grid(3, 0.2),
    "plane learned": lambda: basis.MultivariateGaussianBasis.grid(3, 0.2, learnable=True),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_deferred_initialisation(make):
    real = make()
    points = torch.rand(5) if real.event_dim == 1 else torch.rand(5, 2)
    with torch.device("meta"):
        empty = make()
        assert empty(points.to("meta")).shape == (5, real.num_functions)
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    assert repr(empty)
    restored = copy.deepcopy(empty).to_empty(device="cpu")
    restored.reset_parameters()
    loaded = copy.deepcopy(empty).to_empty(device="cpu")
    loaded.load_state_dict(real.state_dict())
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(real.state_dict(), assign=True)
    for psi in (restored, loaded, assigned):
        assert torch.equal(psi(points), real(points))
    assert repr(restored) == repr(real)


def test_constants_that_were_never_known_cannot_be_reset():
    # Not by a context: after transformers has loaded a model, torch's does not reach linspace any more.
    unknown = basis.GaussianBasis(torch.linspace(0, 1, 4, device="meta"), torch.full((4,), 0.2, device="meta"))
    with pytest.raises(RuntimeError, match="loc was given as a tensor on the meta device"):
        unknown.to_empty(device="cpu").reset_parameters()
    unknown.load_state_dict(basis.GaussianBasis.linspace(4, 0.2).state_dict())
    assert torch.equal(unknown(torch.rand(3)).isfinite(), torch.ones(3, 4, dtype=torch.bool))


def test_what_is_loaded_has_a_structure_of_its_own():
    grid = basis.MultivariateGaussianBasis.grid(2, 0.2)
    full = basis.MultivariateGaussianBasis(torch.rand(4, 2), torch.tensor([[0.04, 0.02], [0.02, 0.03]]))
    t = torch.rand(5, 2)
    grid.load_state_dict(full.state_dict())
    assert not grid.is_diagonal
    assert grid.axes is None
    torch.testing.assert_close(grid(t), full(t))
    same = basis.MultivariateGaussianBasis.grid(2, 0.2)
    same.load_state_dict(basis.MultivariateGaussianBasis.grid(2, 0.5).state_dict())
    assert same.axes is not None
    torch.testing.assert_close(same.axes[0][1], torch.full((2,), 0.5))


def test_a_basis_over_where_the_observations_are():
    seconds = torch.linspace(100, 400, 50, dtype=F64)
    psi = basis.GaussianBasis.spanning(seconds[torch.randperm(50)], 12, scale=(0.1, 0.5))
    unit = basis.GaussianBasis.linspace(12, (0.1, 0.5)).double()
    torch.testing.assert_close(psi.loc, 100 + 300 * torch.linspace(0, 1, 6, dtype=F64).repeat(2))
    torch.testing.assert_close(psi.scale, 300 * unit.scale)
    assert psi.loc.dtype == F64
    values = torch.sin(seconds / 40)[:, None]
    there = basis.GaussianBasis.spanning(seconds, 24, scale=0.05)
    signal = contmax.fit_signal(values, there, positions=seconds)
    share = (seconds - 100) / 300
    expected = contmax.fit_signal(values, basis.GaussianBasis.linspace(24, 0.05), positions=share)
    torch.testing.assert_close(signal(seconds), expected(share), rtol=0, atol=1e-5)
    mask = seconds < 250
    assert basis.GaussianBasis.spanning(torch.where(mask, seconds, torch.nan), 4, mask=mask).bounds[1] < 250
    assert basis.GaussianBasis.spanning(seconds.half(), 4).loc.dtype == torch.float32
    assert basis.GaussianBasis.spanning(seconds, 4, learnable=True).needs_gradient


def test_a_basis_over_a_box_of_unequal_sides():
    places = torch.rand(200, 2, dtype=F64) * torch.tensor([10.0, 2.0]) + torch.tensor([5.0, -1.0])
    psi = basis.MultivariateGaussianBasis.spanning(places, (4, 3), scale=0.1)
    low, high = places.amin(0), places.amax(0)
    torch.testing.assert_close(psi.bounds, (low, high))
    torch.testing.assert_close(psi.covariance_matrix[7], torch.diag((0.1 * (high - low)).square()))
    (x, sx), (y, sy) = psi.axes
    assert (len(x), len(y)) == (4, 3)
    torch.testing.assert_close((sx[0], sy[0]), tuple(0.1 * (high - low)))
    assert psi.is_diagonal
    assert not psi.is_isotropic
    assert basis.MultivariateGaussianBasis.spanning(places, 3, scale=(0.1, 0.3)).axes is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: basis.GaussianBasis.spanning(torch.ones(5), 4), "span an interval"),
        (lambda: basis.GaussianBasis.spanning(torch.tensor([0.0, torch.nan, 1.0]), 4), "1 are NaN or infinite"),
        (lambda: basis.GaussianBasis.spanning(torch.ones(0), 4), "at least two"),
        (lambda: basis.GaussianBasis.spanning(torch.rand(5), 5, (0.1, 0.5)), "multiple of the number of widths"),
        (lambda: basis.GaussianBasis.spanning(torch.rand(5, device="meta"), 5), "spanning reads the values"),
        (lambda: basis.GaussianBasis.spanning(torch.rand(5), 5, -0.1), "scale must be positive"),
        (lambda: basis.MultivariateGaussianBasis.spanning(torch.rand(5, 2), (3, 3, 3)), "one per axis"),
        (
            lambda: basis.MultivariateGaussianBasis(torch.rand(1, 2), torch.tensor([[1.0, 0.5], [0.1, 1.0]])),
            "symmetric",
        ),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_moved_copy_passes_gradients_to_the_basis_it_was_made_of():
    for make in (MAKERS["learned"], MAKERS["plane learned"]):
        psi = make()
        twin = psi.moved(torch.device("cpu"), F64)
        assert twin.loc.dtype == F64
        assert psi.loc.dtype == torch.float32
        assert twin.needs_gradient
        points = torch.rand(5, dtype=F64) if psi.event_dim == 1 else torch.rand(5, 2, dtype=F64)
        twin(points).sum().backward()
        assert all(p.grad.abs().sum() > 0 for p in psi.parameters())


class Warped(basis.Basis):
    """A basis that holds another one."""

    def __init__(self):
        super().__init__()
        self.inner, self.num_functions = basis.GaussianBasis.linspace(4, 0.2), 4

    def forward(self, t):
        return self.inner(t.square())


def test_a_moved_copy_takes_its_parts_along():
    psi = Warped()
    twin = psi.moved(torch.device("meta"), torch.float32)
    assert twin.inner.loc.is_meta
    assert not psi.inner.loc.is_meta
    assert twin(torch.rand(3, device="meta")).shape == (3, 4)


@pytest.mark.parametrize("learnable", [False, True])
def test_factors_lie_as_kernels_take_them(learnable):
    """LAPACK leaves factors column by column; a kernel would have them copied in every call."""
    covariance = torch.tensor([[0.04, 0.01], [0.01, 0.02]])
    made = basis.MultivariateGaussianBasis(torch.rand(5, 2), covariance, learnable=learnable)
    assert made.scale_tril.is_contiguous()
    assert copy.deepcopy(made).double().scale_tril.is_contiguous()


def on_the_line(learnable=False, *, loc=(0.1, 0.4, 0.9), scale=(0.2, 0.1, 0.3)):
    """The same functions twice: of points, and of points with one coordinate."""
    centres, widths = (torch.tensor(x, dtype=F64) for x in (loc, scale))
    line = basis.GaussianBasis(centres, widths, learnable=learnable)
    space = basis.MultivariateGaussianBasis(centres[:, None], widths.square()[:, None, None], learnable=learnable)
    return line, space


@pytest.mark.parametrize("learnable", [False, True])
def test_a_multivariate_basis_in_one_dimension_is_one_on_the_line(learnable):
    line, space = on_the_line(learnable)
    points = torch.rand(2, 5, dtype=F64)
    torch.testing.assert_close(space(points), line(points))
    torch.testing.assert_close(space.bounds, line.bounds)
    values, positions = torch.randn(2, 9, 4, dtype=F64), torch.rand(2, 9, dtype=F64)
    for options in ({}, {"positions": positions}, {"mask": torch.rand(2, 9) < 0.8}):
        mine, peer = (contmax.fit_signal(values, b, **options).coefficients for b in (space, line))
        torch.testing.assert_close(mine, peer)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize(
    "density",
    [
        contmax.densities.TruncatedParabola(torch.tensor([0.3, 0.6], dtype=F64), 0.1),
        contmax.densities.BetaGaussian(torch.tensor([0.3, 0.6], dtype=F64), 0.1, 1.5),
        contmax.densities.Triangular(torch.tensor([0.3, 0.6], dtype=F64), 0.1),
        contmax.densities.Empirical(torch.rand(7, dtype=F64)),
        torch.distributions.Normal(torch.tensor([0.3, 0.6], dtype=F64), 0.1),
        torch.distributions.Uniform(torch.tensor(0.1, dtype=F64), 0.8),
        contmax.densities.Mixture(
            torch.distributions.Categorical(torch.tensor([0.3, 0.7], dtype=F64)),
            contmax.densities.TruncatedParabola(torch.tensor([0.3, 0.6], dtype=F64), 0.1),
        ),
    ],
    ids=lambda density: type(density).__name__,
)
@pytest.mark.filterwarnings("error")
def test_expectations_of_a_multivariate_basis_in_one_dimension(density, learnable):
    line, space = on_the_line(learnable)
    torch.testing.assert_close(contmax.expectation(density, space), contmax.expectation(density, line))


def test_densities_of_one_coordinate_in_one_dimension():
    line, space = on_the_line()
    loc, scale = torch.tensor([0.3], dtype=F64), torch.tensor([[0.1]], dtype=F64)
    for alpha in (1.0, 1.5, 2.0):
        mine = contmax.densities.MultivariateBetaGaussian(loc, scale_tril=scale, alpha=alpha)
        peer = contmax.densities.BetaGaussian(loc[0], scale[0, 0], alpha)
        torch.testing.assert_close(contmax.expectation(mine, space), contmax.expectation(peer, line))
    samples = torch.rand(7, 1, dtype=F64)
    mine, peer = contmax.densities.Empirical(samples, event_dim=1), contmax.densities.Empirical(samples[:, 0])
    torch.testing.assert_close(contmax.expectation(mine, space), contmax.expectation(peer, line))


@pytest.mark.parametrize("grid", [None, (9,)])
def test_attention_over_a_multivariate_basis_in_one_dimension(grid):
    values = torch.randn(2, 9, 4)
    contexts = []
    for make in (basis.GaussianBasis.covering, lambda n: basis.MultivariateGaussianBasis.covering(n, dim=1)):
        torch.manual_seed(0)
        contexts.append(contmax.nn.ContinuousAttention(make(6), embed_dim=4, grid=grid)(values)[0])
    torch.testing.assert_close(*contexts)
    pair = torch.tensor([0.3, 0.5]), torch.tensor([0.1, 0.2])
    both = [contmax.nn.ContinuousAttention(b)(values.double(), pair)[0] for b in on_the_line()]
    torch.testing.assert_close(*both)


def test_a_multivariate_basis_spans_places_of_one_coordinate():
    places, mask = torch.tensor([2.0, 7.0, 12.0, 900.0]), torch.tensor([True, True, True, False])
    made = basis.MultivariateGaussianBasis.spanning(places[:, None], 5, scale=0.1, mask=mask)
    assert [corner.item() for corner in made.bounds] == [2.0, 12.0]
    torch.testing.assert_close(made(places), basis.GaussianBasis.spanning(places, 5, scale=0.1, mask=mask)(places))

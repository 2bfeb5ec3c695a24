"""continuous_attention: against quadrature of signal and density, finite sets, batches, precision, transforms."""

import pytest
import torch
from torch.distributions import Categorical, Laplace, MultivariateNormal, Normal, Uniform

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis, PowerBasis, RectangularBasis
from contmax.densities import BetaGaussian, Mixture, MultivariateBetaGaussian, Triangular, TruncatedParabola

F64 = torch.float64
LOC = torch.tensor([0.2, 0.55, 1.3], dtype=F64)
SCALE = torch.tensor([0.02, 0.1, 0.4], dtype=F64)

LINE = {
    "Gaussian": BetaGaussian(LOC, SCALE, 1.0),
    "4/3": BetaGaussian(LOC, SCALE, 4 / 3),
    "1.7": BetaGaussian(LOC, SCALE, 1.7),
    "parabola": TruncatedParabola(LOC, SCALE),
    "alpha per example": BetaGaussian(LOC, SCALE, torch.tensor([1.2, 2.0, 3.0], dtype=F64)),
    "triangular": Triangular(LOC, SCALE),
    "Normal": Normal(LOC, SCALE),
    "Laplace": Laplace(LOC, SCALE / 4),
    "Uniform": Uniform(LOC, LOC + SCALE),
    "mixture": Mixture(
        Categorical(torch.tensor([[0.3, 0.7]], dtype=F64)),
        TruncatedParabola(torch.stack([LOC, LOC - 0.2], -1), torch.stack([SCALE, SCALE / 2], -1)),
    ),
}


@pytest.mark.parametrize("name", LINE)
def test_context_is_the_integral_of_signal_and_density(name):
    density, basis = LINE[name], GaussianBasis.linspace(12, (0.05, 0.2)).double()
    values = torch.randn(3, 40, 2, dtype=F64)
    t = torch.linspace(-4, 6, 400_001, dtype=F64)
    p = density.log_prob(t[:, None]).exp().nan_to_num(0).mT if name != "Uniform" else None
    if p is None:
        p = ((t >= density.low[:, None]) & (t <= density.high[:, None])) / (density.high - density.low)[:, None]
    product = p[..., None] * contmax.fit_signal(values, basis)(t)
    fine, coarse = (torch.trapezoid(product[:, ::step], t[::step], dim=-2) for step in (1, 2))
    expected = (4 * fine - coarse) / 3  # Simpson's rule: at the peak of Laplace the trapezoid alone errs by 2e-6
    context = contmax.continuous_attention(values, density, basis)
    # The rule sees the ends of the uniform only to the width of its cells.
    torch.testing.assert_close(context, expected, rtol=0, atol=2e-3 if name == "Uniform" else 1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_on_the_plane_context_is_the_integral_of_signal_and_density(alpha):
    basis = MultivariateGaussianBasis.grid(4, 0.2).double()
    values = torch.randn(2, 30, 3, dtype=F64)
    loc = torch.tensor([[0.3, 0.6], [0.9, 0.2]], dtype=F64)
    matrix = torch.tensor([[0.04, 0.01], [0.01, 0.02]], dtype=F64)
    density = MultivariateBetaGaussian(loc, matrix, alpha)
    context = contmax.continuous_attention(values, density, basis, grid=(5, 6))
    line = torch.linspace(-1.5, 2.5, 801, dtype=F64)
    t = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    p = density.log_prob(t[:, None]).exp().mT
    expected = (p[..., None] * contmax.fit_signal(values, basis, grid=(5, 6))(t)).sum(-2) * (4 / 800) ** 2
    torch.testing.assert_close(context, expected, rtol=0, atol=1e-10 if alpha == 1 else 2e-4)


def test_the_gaussian_on_the_plane_is_that_of_torch():
    basis = MultivariateGaussianBasis.grid(3, 0.3).double()
    values = torch.randn(2, 9, 3, dtype=F64)
    loc, matrix = torch.rand(2, 2, dtype=F64), 0.1 * torch.eye(2, dtype=F64)
    ours = contmax.continuous_attention(values, MultivariateBetaGaussian(loc, matrix, 1.0), basis, grid=(3, 3))
    torch.testing.assert_close(
        ours, contmax.continuous_attention(values, MultivariateNormal(loc, matrix), basis, grid=(3, 3))
    )


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_a_finite_set_recovers_discrete_attention(alpha):
    """φ(k) = ψ(k) = e_k: one cell per position, a density that is constant on cells."""
    values, scores = torch.randn(7, 3, dtype=F64), 2 * torch.randn(7, dtype=F64)
    cells = RectangularBasis(torch.linspace(0, 1, 8, dtype=F64))
    p = contmax.entmax(scores, alpha)
    low = torch.arange(7, dtype=F64) / 7
    histogram = torch.distributions.MixtureSameFamily(Categorical(p), Uniform(low, low + 1 / 7))
    context = contmax.continuous_attention(values, histogram, cells, penalty=0.0)
    torch.testing.assert_close(context, p @ values, rtol=0, atol=1e-6)
    nodes = contmax.domains.Nodes(low + 1 / 14, torch.ones(7, dtype=F64))
    prediction = contmax.regularized_prediction(scores, nodes, alpha)
    torch.testing.assert_close(prediction.density(nodes.points), p, rtol=0, atol=1e-12)
    signal = contmax.fit_signal(values, cells, penalty=0.0)
    torch.testing.assert_close(prediction.density(nodes.points) @ signal(nodes.points), p @ values)


def test_a_narrow_density_reads_the_signal_and_a_wide_one_forgets_it():
    basis = GaussianBasis.linspace(32, 0.04)
    values = torch.randn(4, 60, 3)
    loc = torch.rand(4)
    signal = contmax.fit_signal(values, basis)
    narrow = contmax.continuous_attention(values, TruncatedParabola(loc, torch.full((4,), 1e-8)), basis)
    torch.testing.assert_close(narrow, signal(loc[:, None])[:, 0], rtol=1e-3, atol=1e-3)
    for alpha in (1.0, 1.5, 2.0):
        wide = contmax.continuous_attention(values, BetaGaussian(loc, torch.full((4,), 1e4), alpha), basis)
        assert wide.isfinite().all()
        assert wide.abs().max() < 1e-1 * values.abs().max()
        far = contmax.continuous_attention(values, BetaGaussian(loc + 1e5, torch.full((4,), 0.1), alpha), basis)
        assert (far == 0).all()


def test_batches_of_densities():
    basis, values = GaussianBasis.linspace(8, 0.1).double(), torch.randn(2, 20, 3, dtype=F64)
    for queries in ((), (1,), (5,), (2, 3)):
        loc = torch.rand(2, *queries, dtype=F64)
        context = contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), basis)
        assert context.shape == (2, *queries, 3)
        if queries:
            first = contmax.continuous_attention(values, TruncatedParabola(loc[:, 0], 0.1), basis)
            torch.testing.assert_close(context[:, 0], first)
    each = contmax.continuous_attention(values, TruncatedParabola(torch.full((2,), 0.4, dtype=F64), 0.1), basis)
    for shape in ((), (1,)):
        shared = TruncatedParabola(torch.full(shape, 0.4, dtype=F64), 0.1)
        torch.testing.assert_close(contmax.continuous_attention(values, shared, basis), each)
    pair = TruncatedParabola(torch.tensor([0.4, 0.9], dtype=F64), 0.1)
    assert contmax.continuous_attention(values[:1], pair, basis).shape == (2, 3)
    # A sequence without a batch, observed at two sets of positions.
    assert contmax.continuous_attention(values[0], pair, basis, positions=torch.rand(2, 20, dtype=F64)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"batch shape \(3,\) does not fit a signal of batch shape \(2,\)"):
        contmax.continuous_attention(values, TruncatedParabola(torch.rand(3, dtype=F64), 0.1), basis)
    with pytest.raises(ValueError, match="same space"):
        contmax.continuous_attention(values, MultivariateNormal(torch.zeros(2), torch.eye(2)), basis)


class Attend(torch.nn.Module):
    """The function with a basis to learn, so that functional_call can put other constants in it."""

    def __init__(self):
        super().__init__()
        self.basis = GaussianBasis.linspace(3, 0.2, learnable=True).double()

    def forward(self, values, positions, loc, scale, alpha):
        return contmax.continuous_attention(values, BetaGaussian(loc, scale, alpha), self.basis, positions=positions)


def test_gradients_of_everything_that_may_be_learned():
    attend = Attend()

    def context(centres, log_scale, *inputs):
        return torch.func.functional_call(attend, {"basis.loc": centres, "basis.log_scale": log_scale}, inputs)

    inputs = (
        *attend.basis.parameters(),
        torch.randn(2, 4, 1, dtype=F64, requires_grad=True),
        torch.rand(2, 4, dtype=F64, requires_grad=True),
        torch.tensor([0.3, 0.7], dtype=F64, requires_grad=True),
        torch.tensor([0.1, 0.3], dtype=F64, requires_grad=True),
        torch.tensor(1.6, dtype=F64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(context, inputs, atol=1e-6, rtol=1e-5, fast_mode=True)
    assert torch.autograd.gradgradcheck(context, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


def test_two_forwards_before_backward():
    basis, values = GaussianBasis.linspace(8, 0.1).double(), torch.randn(2, 20, 3, dtype=F64)
    apart, together = [], []
    for centre in (0.2, 0.8):
        loc = torch.full((2,), centre, dtype=F64, requires_grad=True)
        context = contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), basis)
        together.append((context.square().sum(), loc))
        again = loc.detach().clone().requires_grad_()
        alone = contmax.continuous_attention(values, TruncatedParabola(again, 0.1), basis).square().sum()
        apart.append(torch.autograd.grad(alone, again)[0])
    for (loss, loc), expected in zip(together, apart, strict=True):
        torch.testing.assert_close(torch.autograd.grad(loss, loc)[0], expected)


def test_nothing_to_attend_gives_zeros_and_no_gradient():
    basis = GaussianBasis.linspace(8, 0.1)
    values, loc = torch.randn(2, 10, 3, requires_grad=True), torch.rand(2, requires_grad=True)
    mask = torch.tensor([[True] * 10, [False] * 10])
    context = contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), basis, mask=mask)
    assert (context[1] == 0).all()
    context.sum().backward()
    assert (values.grad[1] == 0).all()
    assert loc.grad[1] == 0
    assert loc.grad[0] != 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    basis, density = GaussianBasis.linspace(32, 0.05), TruncatedParabola(torch.rand(2, 4), 0.1)
    values = torch.randn(2, 100, 16).to(dtype)
    exact = contmax.continuous_attention(values.double(), density, basis, penalty=1e-4)
    signal = contmax.fit_signal(values, basis, penalty=1e-4)
    for half in (signal, signal.materialize(), signal.to(torch.float32).to(dtype), signal.detach()):
        context = half.expectation(density)
        assert context.dtype == dtype
        torch.testing.assert_close(context.double(), exact, rtol=2**-7, atol=1e-4)
    assert signal(torch.rand(3)).dtype == dtype
    stream = contmax.SignalAccumulator(basis, 1e-4)
    stream.update(values, (torch.arange(100) + 0.5) / 100)
    context = stream.signal().expectation(density)
    assert context.dtype == dtype
    torch.testing.assert_close(context.double(), exact, rtol=2**-7, atol=1e-4)
    with torch.autocast("cpu", dtype):
        context = contmax.continuous_attention(values.float(), density, basis, penalty=1e-4)
    assert context.dtype == torch.float32
    torch.testing.assert_close(context.double(), exact, rtol=1e-4, atol=1e-4)


def test_cached_weights_follow_the_basis_whatever_happens_to_it():
    values, at = torch.randn(30, 2), (torch.arange(30) + 0.5) / 30

    def check(basis):
        cached = contmax.fit_signal(values, basis).coefficients
        torch.testing.assert_close(cached, contmax.fit_signal(values, basis, positions=at).coefficients)

    basis = GaussianBasis.linspace(4, 0.3)
    for _ in range(20):  # an address that was given back is soon given away again
        basis.loc = torch.rand(4)
        check(basis)
    frozen = GaussianBasis.linspace(4, 0.3, learnable=True).requires_grad_(False)
    check(frozen)
    frozen.loc.add_(0.2)
    check(frozen)
    frozen.load_state_dict(GaussianBasis.linspace(4, 0.1, learnable=True).state_dict())
    check(frozen)


def test_inference_first_and_training_later():
    basis, values = GaussianBasis.linspace(8, 0.1), torch.randn(2, 20, 3, requires_grad=True)
    loc = torch.rand(2, requires_grad=True)
    with torch.inference_mode():
        contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), basis)
        made_inside = GaussianBasis.linspace(8, 0.1)
        contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), made_inside)
    contmax.continuous_attention(values, TruncatedParabola(loc, 0.1), basis).sum().backward()
    assert loc.grad.isfinite().all()


def test_vmap_jacobians_and_forward_mode():
    basis, values = GaussianBasis.linspace(6, 0.2).double(), torch.randn(3, 9, 2, dtype=F64)
    loc, scale = torch.rand(3, dtype=F64), 0.1 + torch.rand(3, dtype=F64)

    def one(values, loc, scale):
        return contmax.continuous_attention(values, BetaGaussian(loc, scale, 1.5, validate_args=False), basis)

    together = one(values, loc, scale)
    torch.testing.assert_close(torch.vmap(one)(values, loc, scale), together)
    backward = torch.func.jacrev(one, argnums=(1, 2))(values, loc, scale)
    torch.testing.assert_close(torch.func.jacfwd(one, argnums=(1, 2))(values, loc, scale), backward)


@pytest.mark.graph
@pytest.mark.parametrize("basis", [GaussianBasis.linspace(6, 0.2), PowerBasis(3)], ids=["gaussian", "power"])
def test_compiled_is_the_same(basis):
    def attend(values, loc, scale):
        return contmax.continuous_attention(values, BetaGaussian(loc, scale, 1.5, validate_args=False), basis)

    inputs = [torch.randn(3, 9, 2, requires_grad=True), torch.rand(3, requires_grad=True), torch.rand(3) + 0.1]
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager_default_partitioner")
    got, expected = compiled(*inputs), attend(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), inputs[:2]),
        torch.autograd.grad(expected.sum(), inputs[:2]),
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.parametrize("length", [1, 2, 5])
def test_few_observations_and_few_functions(length):
    values = torch.randn(2, length, 3)
    density = TruncatedParabola(torch.rand(2), 0.1)
    for basis in (
        GaussianBasis.linspace(16, (0.1, 0.5)),
        GaussianBasis([0.5], 0.3),
        GaussianBasis([0.5, 0.5, 0.5], 0.3),
    ):
        context = contmax.continuous_attention(values, density, basis)
        assert context.shape == (2, 3)
        assert context.isfinite().all()


def test_positions_of_any_range():
    basis = GaussianBasis.linspace(40, 8.0, low=100.0, high=300.0).double()
    t = torch.rand(2, 500, dtype=F64) * 200 + 100
    values = torch.stack([t, torch.ones_like(t)], -1)
    density = TruncatedParabola.from_moments(torch.tensor([150.0, 240.0], dtype=F64), torch.tensor(25.0, dtype=F64))
    context = contmax.continuous_attention(values, density, basis, positions=t, penalty=1e-8)
    torch.testing.assert_close(context[:, 0], density.mean, rtol=1e-2, atol=0)
    torch.testing.assert_close(context[:, 1], torch.ones(2, dtype=F64), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": 0.0}, "linearly dependent"),
        ({"penalty": -1.0}, "penalty must be finite and not negative"),
        ({"mask": torch.ones(3, 5, dtype=torch.bool)}, "mask must have shape"),
        ({"positions": torch.rand(3, 5)}, "positions of shape"),
        ({"grid": (2, 3)}, "grid"),
    ],
)
def test_bad_input_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        contmax.continuous_attention(
            torch.randn(2, 5, 3), TruncatedParabola(torch.rand(2), 0.1), GaussianBasis.linspace(8, 0.3), **options
        )

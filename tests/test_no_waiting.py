"""Nothing in a forward or backward pass looks at numbers that are on an accelerator: that would wait for it.

There need not be one here. The library is made to believe that no tensor may be looked at, and every operation with
which torch looks is refused.
"""

import sys

import pytest
import torch
from density_families import ALL
from torch.distributions import Categorical, Independent, Laplace, Normal, Uniform
from torch.utils._python_dispatch import TorchDispatchMode

import contmax
from contmax import basis, densities, domains, losses, nn

aten = torch.ops.aten
# Operations whose result, or its size, the host must know; the checked factorisations look for failures.
LOOKS = {
    aten._local_scalar_dense.default: "item(), bool() or float() of a tensor",
    aten.is_nonzero.default: "the truth of a tensor",
    aten.equal.default: "torch.equal",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_dim.default: "unique",
    aten._linalg_check_errors.default: "a factorisation that is checked",
    aten.linalg_eigh.default: "eigenvalues",
    aten._linalg_eigh.default: "eigenvalues",
    aten._linalg_svd.default: "singular values",
    aten.lift_fresh.default: "a tensor made of numbers of the host",
}
BY_INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class NoLooking(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        by_mask = function in BY_INDEX and any(i is not None and i.dtype == torch.bool for i in args[1])
        if function in LOOKS or by_mask:
            raise AssertionError(f"waits for the device: {LOOKS.get(function, 'indexing by a boolean mask')}")
        return function(*args, **(kwargs or {}))


@pytest.fixture
def accelerator(monkeypatch):
    """Forbid to look at numbers, in a context: what is made once is made before."""
    for module in [m for name, m in sys.modules.items() if name.startswith("contmax.")]:
        if hasattr(module, "is_eager_cpu"):
            monkeypatch.setattr(module, "is_eager_cpu", lambda *values: not any(torch.is_tensor(v) for v in values))
    monkeypatch.setattr("contmax._backend.numba_works", lambda: False)
    monkeypatch.setattr("contmax.signal._ridge._on_device", lambda n, device: torch.arange(n[0], n[-1] + 1))
    return NoLooking


def twice(accelerator, call):
    """Once to make constants and load libraries, then without looking, with the backward pass of what was made."""
    call()
    with accelerator():
        results = [r for r in call() if torch.is_tensor(r) and r.requires_grad]
        if results:
            sum(r.nan_to_num().square().sum() for r in results).backward()


def test_looking_is_noticed():
    x = torch.rand(4)
    with NoLooking():
        for look in (
            lambda: x.sum().item(),
            lambda: bool(x.any()),
            lambda: x[x > 0.5],
            lambda: x.unique(),
            lambda: torch.tensor([1.0]),
            lambda: torch.linalg.cholesky(x[:1, None]),
            lambda: torch.linalg.solve(x[:1, None], x[:1]),
        ):
            with pytest.raises(AssertionError, match="waits"):
                look()


LINE = {
    "gaussian": lambda: basis.GaussianBasis.linspace(8, 0.1),
    "learned": lambda: basis.GaussianBasis.linspace(8, 0.1, learnable=True),
    "splines": lambda: basis.BSplineBasis.clamped(8),
    "rectangles": lambda: basis.RectangularBasis([0.0, 0.2, 0.5, 1.0]),
    "cosines": lambda: basis.CosineBasis.harmonics(4),
    "powers": lambda: basis.PowerBasis(3),
}
PLANE = {
    "product": lambda: basis.MultivariateGaussianBasis.grid(3, 0.2),
    "learned": lambda: basis.MultivariateGaussianBasis.grid(3, 0.2, learnable=True),
}
HEADS = {
    "gates": lambda dim: nn.GateHead(6, dim=dim),
    "pooled": lambda dim: nn.PooledHead(6, dim=dim),
    "pooled-as-printed": lambda dim: nn.PooledHead(6, dim=dim, position_channels=False),
    "moments": lambda dim: nn.MomentHead(nn.DiscreteAttention(6, alpha=1.5), dim=dim),
    "windows": lambda dim: nn.WindowHead(nn.DiscreteAttention(6, alpha=1.5), dim=dim),
}


@pytest.mark.parametrize("make", LINE.values(), ids=LINE)
def test_signals(make, accelerator):
    psi, values = make(), torch.randn(3, 12, 6, requires_grad=True)
    mask, t = torch.rand(3, 12) > 0.3, torch.rand(3, 12)
    loc = torch.rand(3, requires_grad=True)
    for where in ({}, {"mask": mask}, {"positions": t}, {"positions": t, "mask": mask}):

        def call(where=where):
            signal = contmax.fit_signal(values, psi, **where)
            density = densities.TruncatedParabola(loc, 0.1)
            return signal.expectation(density), signal(t), signal.explained_variance(), signal.materialize()(t)

        twice(accelerator, call)

    def stream():
        stream = contmax.SignalAccumulator(psi)
        stream.update(values, t, mask)
        return (stream.signal().coefficients,)

    twice(accelerator, stream)


@pytest.mark.parametrize(
    ("head", "alpha"), [*((head, 2.0) for head in HEADS), ("gates", 1.0), ("gates", 1.7), ("gates", torch.tensor(1.4))]
)
def test_attention_on_the_line(head, alpha, accelerator):
    psi, values = LINE["gaussian"](), torch.randn(3, 12, 6, requires_grad=True)
    mask, t = torch.rand(3, 12) > 0.3, torch.rand(3, 12)
    attend = nn.ContinuousAttention(psi, head=HEADS[head](1), alpha=alpha)
    both = nn.CombinedAttention(nn.DiscreteAttention(6), psi, head=HEADS[head](1), alpha=alpha)
    for where in ({}, {"mask": mask}, {"positions": t, "mask": mask}):
        twice(accelerator, lambda where=where: (attend(values, **where)[0], both(values, **where)[0]))


@pytest.mark.parametrize(("head", "alpha"), [*((head, 2.0) for head in HEADS), ("gates", 1.0), ("gates", 1.5)])
def test_attention_in_the_plane(head, alpha, accelerator):
    psi, values = PLANE["product"](), torch.randn(3, 12, 6, requires_grad=True)
    attend = nn.ContinuousAttention(psi, head=HEADS[head](2), grid=(3, 4), alpha=alpha)
    mask = torch.rand(3, 12) > 0.3
    for where in ({}, {"mask": mask}):
        twice(accelerator, lambda where=where: attend(values, **where))


@pytest.mark.parametrize(
    ("psi", "options"),
    [
        (LINE["gaussian"], {}),
        (LINE["learned"], {"num_components": 2, "learnable": True, "alpha": 1.5, "num_steps": 2}),
        (PLANE["product"], {"alpha": [1.5, 2.0]}),
    ],
)
def test_many_heads(psi, options, accelerator):
    psi = psi()
    grid = None if psi.event_dim == 1 else (3, 4)
    attend = nn.MultiheadContinuousAttention(6, 2, psi, grid=grid, **options)
    query, values, mask = torch.randn(3, 2, 6), torch.randn(3, 12, 6, requires_grad=True), torch.rand(3, 12) > 0.3
    for where in ({}, {"mask": mask}):
        twice(accelerator, lambda where=where: attend(query, values, **where))


@pytest.mark.parametrize("family", ALL, ids=str)
def test_densities(family, accelerator):
    parameters = family.tensors(requires_grad=True)
    t = (lambda p: p.mean + 0.3 * p.stddev)(family.make()).detach()

    twice(accelerator, lambda: family.said_by(family.build(**parameters), t, torch.full_like(t, 0.3)))


def lines(loc, scale):
    return [
        *(densities.BetaGaussian(loc, scale, alpha) for alpha in (0.9, 1.0, 1.5, 1.7, 2.0, 3.0)),
        densities.Triangular(loc, scale),
        densities.Mixture(Categorical(logits=loc, validate_args=False), densities.TruncatedParabola(loc, scale)),
        Normal(loc, scale, validate_args=False),
        Laplace(loc, scale, validate_args=False),
        Uniform(loc - scale, loc + scale, validate_args=False),
    ]


@pytest.mark.parametrize("make", LINE.values(), ids=LINE)
def test_expectations_on_the_line(make, accelerator):
    psi = make()
    loc, scale = torch.rand(3, requires_grad=True), torch.full((3,), 0.1, requires_grad=True)
    twice(accelerator, lambda: [contmax.expectation(p, psi) for p in lines(loc, scale)])


@pytest.mark.parametrize("make", PLANE.values(), ids=PLANE)
def test_expectations_in_the_plane(make, accelerator):
    psi = make()
    loc, scale = torch.rand(3, 2, requires_grad=True), torch.full((3, 2), 0.1, requires_grad=True)

    def call():
        products = (Laplace(loc, scale, validate_args=False), Uniform(loc, loc + scale, validate_args=False))
        made = [densities.MultivariateBetaGaussian(loc, scale_diag=scale, alpha=a) for a in (1.0, 1.5, 1.7, 2.0)]
        made += [Independent(p, 1, validate_args=False) for p in (Normal(loc, scale, validate_args=False), *products)]
        return [contmax.expectation(p, psi) for p in made]

    twice(accelerator, call)


def test_losses(accelerator):
    scores, weight = torch.randn(5, 7, requires_grad=True), torch.randn(9, 7, requires_grad=True)
    labels, mask = torch.randint(0, 7, (5,)), torch.rand(5, 7) > 0.2
    mask[torch.arange(5), labels] = True
    loc, scale = torch.rand(3, requires_grad=True), torch.full((3,), 0.1, requires_grad=True)
    for alpha in (1.0, 1.5, 2.0, 1.3):
        twice(accelerator, lambda a=alpha: [losses.entmax_loss(scores, labels, a, mask=mask)])
        twice(accelerator, lambda a=alpha: [contmax.entmax(scores, a), contmax.entmax(scores, a, mask=mask)])
        twice(accelerator, lambda a=alpha: [losses.linear_entmax_loss(scores, weight, labels, a)])

        def call(alpha=alpha):
            p, q = densities.BetaGaussian(loc, scale, alpha), densities.BetaGaussian(loc.detach() + 0.01, 0.2, alpha)
            return [losses.fenchel_young(p, q), losses.fenchel_young(p, loc.detach())]

        twice(accelerator, call)


def test_divergences(accelerator):
    loc, scale = torch.rand(3, 2, requires_grad=True), torch.full((3, 2), 0.1, requires_grad=True)

    def of(alpha, factor=1.0):
        return densities.MultivariateBetaGaussian(loc, scale_diag=factor * scale, alpha=alpha)

    kl = torch.distributions.kl_divergence
    twice(accelerator, lambda: [kl(of(1.0), of(1.0, 2.0)), kl(of(1.0), of(2.0))])
    with accelerator(), pytest.raises(NotImplementedError, match="no closed form"):
        kl(of(2.0), of(1.0))
    with accelerator(), pytest.raises(NotImplementedError, match="Move both densities to the CPU"):
        kl(of(2.0), of(2.0))


@pytest.mark.parametrize(
    ("domain", "alpha"),
    [
        (domains.Interval(0.0, 1.0, resolution=4), 1.5),
        (domains.Knots(torch.linspace(0, 1, 9)), 2.0),
        (domains.Nodes(torch.linspace(0, 1, 9), torch.full((9,), 0.1)), 1.5),
    ],
)
def test_predictions(domain, alpha, accelerator):
    steepness = torch.ones(3, 1, requires_grad=True)

    def call():
        p = contmax.regularized_prediction(lambda t: -steepness * (t - 0.3).square(), domain, alpha)
        return p.mean, p.variance, p.threshold

    twice(accelerator, call)

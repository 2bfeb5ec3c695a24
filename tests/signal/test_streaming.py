"""Accumulators refuse what does not belong together, in one line, and leave their sums as they were."""

import copy

import pytest
import torch

import contmax
from contmax.basis import Basis, BSplineBasis, GaussianBasis, MultivariateGaussianBasis, PowerBasis


class Ramps(Basis):
    """Two bases of this class differ in a plain number only, which no state dict has."""

    num_functions = 3

    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, t):
        return torch.exp(self.slope * t.unsqueeze(-1) * torch.arange(3))


def stream_over(basis, length=20, **options):
    stream = contmax.SignalAccumulator(basis, **options)
    stream.update(*observed(basis, length))
    return stream


def observed(basis, length, channels=2, batch=()):
    shape = (length,) if basis.event_dim == 1 else (length, basis.event_dim)
    return torch.randn(*batch, length, channels), torch.rand(shape)


OTHERS = {
    "widths": (GaussianBasis.linspace(12, 0.1), GaussianBasis.linspace(12, 0.2)),
    "centres": (GaussianBasis.linspace(12, 0.1), GaussianBasis.linspace(12, 0.1, high=2.0)),
    "families": (GaussianBasis.linspace(4, 0.1), PowerBasis(4)),
    "numbers": (PowerBasis(4), PowerBasis(5)),
    "dimensions": (GaussianBasis.linspace(9, 0.1), MultivariateGaussianBasis.grid(3, 0.1)),
    "one of many functions": (
        GaussianBasis(torch.linspace(0, 1, 500), torch.full((500,), 1e-4)),
        GaussianBasis(torch.linspace(0, 1, 500), torch.full((500,), 1e-4).index_fill(0, torch.tensor([77]), 2e-4)),
    ),
    "plain numbers": (Ramps(1.0), Ramps(2.0)),
}


@pytest.mark.parametrize(("one", "other"), OTHERS.values(), ids=OTHERS)
def test_accumulators_of_other_functions_are_not_merged(one, other):
    mine = stream_over(one)
    before = mine.signal().coefficients
    with pytest.raises(ValueError, match="both must use the same basis") as raised:
        mine.merge(stream_over(other))
    assert "\n" not in str(raised.value)
    assert torch.equal(mine.signal().coefficients, before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianBasis.linspace(6, 0.1),
        lambda: GaussianBasis.linspace(6, 0.1, learnable=True),
        lambda: BSplineBasis.clamped(7),
        lambda: MultivariateGaussianBasis.grid(3, 0.2),
        lambda: Ramps(0.5),
    ],
)
def test_accumulators_of_equal_bases_are_merged(make):
    basis = make()
    for twin in (make(), copy.deepcopy(basis)):
        values, positions = observed(basis, 40)
        whole = contmax.SignalAccumulator(basis)
        whole.update(values, positions)
        mine, other = contmax.SignalAccumulator(basis), contmax.SignalAccumulator(twin)
        mine.update(values[:10], positions[:10])
        other.update(values[10:], positions[10:])
        mine.merge(other)
        torch.testing.assert_close(mine.signal().coefficients, whole.signal().coefficients)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("other", [(1, ()), (1, (3,)), (4, (3,)), (2, (1,)), (2, (5, 3)), (1, (1,))])
def test_updates_of_another_shape_do_not_broadcast(batch, other):
    basis = GaussianBasis.linspace(6, 0.2)
    stream = contmax.SignalAccumulator(basis)
    stream.update(*observed(basis, 20, 2, batch))
    before = stream.signal().coefficients
    channels, shape = other
    with pytest.raises(ValueError, match=r"of batch shape .* and .* channels"):
        stream.update(*observed(basis, 20, channels, shape))
    twin = contmax.SignalAccumulator(basis)
    twin.update(*observed(basis, 20, channels, shape))
    with pytest.raises(ValueError, match=r"of batch shape .* and .* channels"):
        stream.merge(twin)
    assert torch.equal(stream.signal().coefficients, before)
    stream.update(*observed(basis, 7, 2, batch))


def test_chunks_may_have_positions_for_all_or_for_each():
    basis, values, t = GaussianBasis.linspace(8, 0.2), torch.randn(3, 30, 2), torch.rand(30)
    mask = torch.rand(3, 10) < 0.7
    stream = contmax.SignalAccumulator(basis)
    stream.update(values[:, :10], t[:10])
    stream.update(values[:, 10:20], t[10:20].expand(3, -1))
    stream.update(values[:, 20:], t[20:], mask)
    seen = torch.cat([torch.ones(3, 20, dtype=torch.bool), mask], -1)
    whole = contmax.fit_signal(values, basis, positions=t, mask=seen)
    torch.testing.assert_close(stream.signal().coefficients, whole.coefficients, rtol=1e-4, atol=1e-4)


PLANE = MultivariateGaussianBasis.grid(3, 0.3)
LINE = GaussianBasis.linspace(6, 0.2)
WRONG = {
    "positions too short": (LINE, torch.randn(2, 20, 3), torch.rand(19), None, r"positions of shape \(19,\)"),
    "positions of another batch": (LINE, torch.randn(2, 20, 3), torch.rand(3, 20), None, r"positions of shape \(3, 20"),
    "positions of the plane": (LINE, torch.randn(20, 3), torch.rand(20, 2), None, r"positions of shape \(20, 2\)"),
    "positions of the line": (PLANE, torch.randn(20, 3), torch.rand(20), None, r"positions of shape \(20,\)"),
    "mask too short": (LINE, torch.randn(2, 20, 3), torch.rand(20), torch.ones(19) > 0, r"mask must have shape"),
    "mask of another batch": (LINE, torch.randn(2, 20, 3), torch.rand(20), torch.ones(3, 20) > 0, r"mask must have sh"),
    "no channels": (LINE, torch.randn(20), torch.rand(20), None, r"values must be floating-point of shape"),
}


@pytest.mark.parametrize(("basis", "values", "positions", "mask", "message"), WRONG.values(), ids=WRONG)
def test_wrong_lengths_are_said_in_one_line(basis, values, positions, mask, message):
    stream = contmax.SignalAccumulator(basis)
    with pytest.raises(ValueError, match=message) as raised:
        stream.update(values, positions, mask)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="no observations"):
        stream.signal()


def test_an_empty_chunk_changes_nothing():
    stream = stream_over(LINE)
    before = stream.signal().coefficients
    stream.update(torch.randn(0, 2), torch.rand(0))
    assert torch.equal(stream.signal().coefficients, before)


@pytest.mark.parametrize("penalty", [float("nan"), float("inf"), -1.0, -float("inf")])
def test_a_penalty_is_a_number_that_is_not_negative(penalty):
    values = torch.randn(2, 20, 3)
    for call in (
        lambda: contmax.SignalAccumulator(LINE, penalty),
        lambda: contmax.fit_signal(values, LINE, penalty=penalty),
        lambda: contmax.fit_signal(values, LINE, positions=torch.rand(20), penalty=penalty),
        lambda: contmax.nn.ContinuousAttention(LINE, embed_dim=3, penalty=penalty)(values),
    ):
        with pytest.raises(ValueError, match=r"penalty must be finite and not negative; got"):
            call()

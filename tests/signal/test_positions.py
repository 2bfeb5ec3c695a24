"""Positions and masks of observations: outside the basis, not finite, masked, of the wrong type."""

import warnings

import numpy as np
import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis, SineBasis
from contmax.signal._observations import as_grid

F64 = torch.float64


def test_positions_far_outside_the_basis_are_named_once():
    basis, seconds = GaussianBasis.linspace(16, (0.1, 0.5)), torch.linspace(0, 300, 200)
    values = torch.randn(200, 2)
    with pytest.warns(UserWarning, match=r"19\d of 200 positions lie far outside the basis.*\[0, 1\].*spanning"):
        contmax.fit_signal(values, basis, positions=seconds)
    contmax.fit_signal(values, basis, positions=seconds)  # warnings are errors here
    contmax.fit_signal(values, GaussianBasis.spanning(seconds, 16), positions=seconds)
    stream = contmax.SignalAccumulator(GaussianBasis.linspace(16, 0.1))
    with pytest.warns(UserWarning, match="far outside"):
        stream.update(values, seconds)
    plane = MultivariateGaussianBasis.grid(3, 0.2)
    far = torch.cat([torch.rand(8, 2), torch.tensor([[0.5, 40.0]])])
    with pytest.warns(UserWarning, match=r"1 of 9 positions .* \[0, 1\] × \[0, 1\]"):
        contmax.fit_signal(torch.randn(9, 2), plane, positions=far)


def test_positions_where_the_basis_reaches_are_nobody_s_business():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, wide = torch.randn(50, 2), torch.linspace(-3, 4, 50)
        contmax.fit_signal(values, GaussianBasis.linspace(8, 2.0), positions=wide)
        contmax.fit_signal(values, SineBasis.harmonics(4), positions=10 * torch.rand(50) + 0.1)
        masked = torch.where(torch.arange(50) < 40, torch.rand(50), 1e6)
        contmax.fit_signal(values, GaussianBasis.linspace(8, 0.1), positions=masked, mask=masked < 1)
        there = torch.where(torch.arange(50) < 40, 1000 + 20 * torch.rand(50), torch.nan)
        far_from_zero = GaussianBasis.linspace(8, 2.0, low=1000.0, high=1020.0)
        contmax.fit_signal(values, far_from_zero, positions=there, mask=there.isfinite())
        basis = GaussianBasis.linspace(8, 0.1)
        at = 100 * torch.rand(3, 50)
        torch.vmap(lambda t: contmax.fit_signal(values, basis, positions=t).coefficients)(at)


def test_positions_that_were_left_out_are_missed_where_the_basis_is_not_on_the_unit_interval():
    seconds, values = torch.linspace(0, 3600, 50), torch.randn(2, 50, 4)
    basis = GaussianBasis.spanning(seconds, 16)
    with pytest.warns(UserWarning, match=r"No positions were given.*basis covers \[0, 3600\]. Pass positions="):
        contmax.fit_signal(values, basis)
    contmax.fit_signal(values, basis)  # warnings are errors here
    density = contmax.densities.TruncatedParabola(torch.rand(2), 0.1)
    calls = [
        lambda psi: contmax.continuous_attention(values, density, psi),
        lambda psi: contmax.nn.ContinuousAttention(psi, embed_dim=4)(values),
        lambda psi: contmax.nn.MultiheadContinuousAttention(4, 2, psi)(values, values),
        lambda psi: contmax.nn.CombinedAttention(contmax.nn.DiscreteAttention(4), psi)(values),
        lambda psi: contmax.fit_signal(values, psi, mask=torch.rand(2, 50) > 0.5),
    ]
    for call in calls:
        for box in ((0.0, 60.0), (0.5, 1.0), (5.0, 6.0), (-1.0, 1.0), (0.0, 1e-6)):
            with pytest.warns(UserWarning, match="No positions were given"):
                call(GaussianBasis.covering(16, low=box[0], high=box[1]))
    plane = MultivariateGaussianBasis(torch.rand(9, 2) * torch.tensor([1.0, 40.0]), torch.eye(2))
    with pytest.warns(UserWarning, match="No positions were given"):
        contmax.fit_signal(torch.randn(20, 2), plane, grid=(4, 5))
    for good in (
        GaussianBasis.covering(16),
        GaussianBasis.covering(1),
        GaussianBasis.covering(16, low=-0.2, high=1.2),
        GaussianBasis((torch.arange(8) + 0.5) / 8, 0.1),
        SineBasis.harmonics(4),
    ):
        contmax.fit_signal(values, good)


def test_unix_times_in_float32_are_called_rounded():
    times = 1.7e9 + 3600 * torch.rand(50, dtype=F64)
    values, basis = torch.randn(50, 4), GaussianBasis.spanning(times, 16)
    with pytest.warns(UserWarning, match=r"multiples of 128 in float32.*Pass float64"):
        contmax.fit_signal(values, basis, positions=times.float())
    stream = contmax.SignalAccumulator(GaussianBasis.spanning(times, 16))
    with pytest.warns(UserWarning, match=r"multiples of 128 in float32"):
        stream.update(values, times.float())
    contmax.fit_signal(values, GaussianBasis.spanning(times, 16), positions=times)  # warnings are errors here
    days = torch.rand(50)
    contmax.fit_signal(values, GaussianBasis.covering(128), positions=days)


def test_positions_of_the_wrong_shape_are_answered_with_the_right_ones():
    values = torch.randn(3, 50, 2)
    with pytest.raises(ValueError, match=r"pass positions of shape \(50,\) or \(\*batch, 50\)\.$"):
        contmax.fit_signal(values, GaussianBasis.covering(8), positions=torch.rand(49))
    with pytest.raises(ValueError, match=r"pass positions of shape \(50, 2\) or \(\*batch, 50, 2\)\.$"):
        contmax.fit_signal(values, MultivariateGaussianBasis.covering(3), positions=torch.rand(50))


def test_nan_positions_are_called_nan():
    basis, t = GaussianBasis.linspace(8, 0.2), torch.rand(20)
    t[3] = torch.nan
    with pytest.raises(ValueError, match=r"NaN or infinite.*mask=positions\.isfinite\(\)"):
        contmax.fit_signal(torch.randn(20, 2), basis, positions=t)
    stream = contmax.SignalAccumulator(basis)
    stream.update(torch.randn(20, 2), t)
    with pytest.raises(ValueError, match="NaN or infinite"):
        stream.signal()


@pytest.mark.parametrize("per_example", [False, True])
@pytest.mark.parametrize("plane", [False, True])
def test_what_the_mask_hides_reaches_neither_result_nor_gradient(per_example, plane):
    if plane:
        basis = MultivariateGaussianBasis(torch.rand(4, 2), 0.1 * torch.eye(2), learnable=True).double()
    else:
        basis = GaussianBasis.linspace(4, 0.2, learnable=True).double()
    values, shape = torch.randn(2, 12, 3, dtype=F64), (2, 12) if per_example else (12,)
    t = torch.rand(*shape, 2, dtype=F64) if plane else torch.rand(shape, dtype=F64)
    hidden = torch.zeros(shape, dtype=torch.bool)
    hidden[..., 5:8] = True
    mask = ~hidden if per_example else ~hidden & torch.tensor([[True] * 12, [True] * 10 + [False] * 2])
    bad = torch.where(hidden.unsqueeze(-1) if plane else hidden, torch.nan, t).requires_grad_()
    stream = contmax.SignalAccumulator(basis)
    stream.update(torch.where(mask.unsqueeze(-1), values, torch.nan), bad, mask)
    expected = contmax.fit_signal(values, basis, positions=t, mask=mask).coefficients
    for got in (
        contmax.fit_signal(values, basis, positions=bad, mask=mask).coefficients,
        stream.signal().coefficients,
    ):
        torch.testing.assert_close(got, expected)
        gradients = torch.autograd.grad(got.square().sum(), (bad, *basis.parameters()), retain_graph=True)
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.graph  # with the run-time type checker of the tests it would be the one to refuse
def test_a_mask_of_integers_is_refused_everywhere():
    basis, values, mask = GaussianBasis.linspace(8, 0.2), torch.randn(2, 6, 4), torch.ones(2, 6, dtype=torch.int64)
    density = contmax.densities.TruncatedParabola(torch.rand(2), 0.1)
    nn, discrete = contmax.nn, contmax.nn.DiscreteAttention(4)
    calls = [
        lambda: contmax.fit_signal(values, basis, mask=mask),
        lambda: contmax.continuous_attention(values, density, basis, mask=mask),
        lambda: contmax.SignalAccumulator(basis).update(values, torch.rand(6), mask),
        lambda: contmax.maps.moments(torch.full((2, 6), 1 / 6), torch.rand(6), mask=mask),
        lambda: contmax.entmax(values[..., 0], mask=mask),
        lambda: contmax.losses.entmax_loss(values[..., 0], torch.zeros(2, dtype=torch.long), mask=mask),
        lambda: contmax.losses.fenchel_young(density, torch.rand(2), mask=mask[:, 0]),
        lambda: GaussianBasis.spanning(torch.rand(2, 6), 4, mask=mask),
        lambda: discrete(values, mask=mask),
        lambda: nn.PooledHead(4)(values, alpha=2.0, mask=mask),
        lambda: nn.MomentHead(discrete)(values, alpha=2.0, mask=mask),
        lambda: nn.ContinuousAttention(basis, head=nn.PooledHead(4))(values, mask=mask),
        lambda: nn.CombinedAttention(discrete, basis)(values, mask=mask),
        lambda: nn.MultiheadContinuousAttention(4, 2, basis)(values, values, mask=mask),
        lambda: nn.Entmax(1.5)(values[..., 0], mask=mask),
        lambda: nn.FenchelYoungLoss()(values[..., 0], torch.zeros(2, dtype=torch.long), mask=mask),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"mask must be boolean, .* got torch\.int64\. Pass mask\.bool\(\)"):
            call()


def test_sizes_of_a_grid_are_whole_and_positive():
    for sizes in ([3, 5], torch.Size((3, 5)), np.array([3, 5])):
        assert as_grid(sizes) == (3, 5)
    with pytest.raises(TypeError, match=r"whole numbers for sizes, such as \(14, 14\); got \(3.0, 5.0\)"):
        as_grid((3.0, 5.0))
    values, basis = torch.randn(15, 4), MultivariateGaussianBasis.grid(2, scale=0.3)
    with pytest.raises(ValueError, match=r"positive sizes, such as \(14, 14\); got \(-3, -5\)"):
        contmax.fit_signal(values, basis, grid=(-3, -5))
    with pytest.raises(ValueError, match="positive sizes"):
        contmax.nn.ContinuousAttention(basis, embed_dim=4, grid=(0, 5))


def test_a_grid_with_one_axis_is_the_line():
    values, basis = torch.randn(2, 15, 4), GaussianBasis.linspace(5, scale=0.2)
    signal = contmax.fit_signal(values, basis, grid=(15,))
    assert torch.equal(signal.coefficients, contmax.fit_signal(values, basis).coefficients)
    assert torch.equal(signal.explained_variance(), contmax.fit_signal(values, basis).explained_variance())
    head = contmax.nn.GateHead(4).eval()
    one, other = (contmax.nn.ContinuousAttention(basis, head=head, grid=grid)(values) for grid in (None, (15,)))
    torch.testing.assert_close(one[0], other[0])


@pytest.mark.parametrize("dim", [1, 2])
def test_positions_for_all_may_have_a_mask_for_each(dim):
    basis = GaussianBasis.linspace(6, 0.2) if dim == 1 else MultivariateGaussianBasis.grid(3, scale=0.05)
    positions, values = (
        torch.rand(20, *[2] * (dim > 1), dtype=torch.float64),
        torch.randn(3, 20, 2, dtype=torch.float64),
    )
    mask = torch.rand(3, 20) > 0.4
    mask[:, 0] = torch.tensor([True, False, False])
    mask[:, 1] = False
    told = positions.clone()
    told[1] = torch.nan
    signal = contmax.fit_signal(values, basis, positions=told, mask=mask)
    stream = contmax.SignalAccumulator(basis)
    stream.update(values, told, mask)
    for i, kept in enumerate(mask):
        alone = contmax.fit_signal(values[i, kept], basis, positions=positions[kept]).coefficients
        torch.testing.assert_close(signal.coefficients[i], alone)
        torch.testing.assert_close(stream.signal().coefficients[i], alone)

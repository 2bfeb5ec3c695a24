"""Bases that choose their widths from the number of functions."""

import math

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis


def waves(t, lengths):
    """Sines and cosines of given wavelengths at points (L,): (L, 2·len)."""
    phase = 2 * math.pi * t[:, None] / torch.tensor(lengths, dtype=t.dtype)
    return torch.cat([phase.sin(), phase.cos()], -1)


def explained(basis, values, **options):
    return float(contmax.fit_signal(values, basis, **options).explained_variance())


def test_widths_follow_from_the_number():
    basis = GaussianBasis.covering(64)
    assert basis.num_functions == 64
    torch.testing.assert_close(basis.loc, torch.linspace(0, 1, 64))
    torch.testing.assert_close(basis.scale, torch.full((64,), 0.8 / 63))
    shifted = GaussianBasis.covering(5, low=10.0, high=30.0, learnable=True)
    torch.testing.assert_close(shifted.scale, torch.full((5,), 4.0))
    assert shifted.bounds == (10, 30)
    assert shifted.needs_gradient
    assert GaussianBasis.covering(1).scale == pytest.approx(0.8)


def test_in_the_plane_and_in_space():
    plane = MultivariateGaussianBasis.covering(10)
    assert plane.num_functions == 100
    assert plane.is_isotropic
    assert plane.axes is not None
    torch.testing.assert_close(plane.covariance_matrix, (0.8 / 9) ** 2 * torch.eye(2).expand(100, 2, 2))
    oblong = MultivariateGaussianBasis.covering((5, 9), low=-1.0, high=1.0)
    diagonal = torch.tensor([0.8 * 2 / 4, 0.8 * 2 / 8]).square()
    torch.testing.assert_close(oblong.covariance_matrix[0], diagonal.diag())
    assert MultivariateGaussianBasis.covering(3, dim=3).event_dim == 3
    with pytest.raises(ValueError, match="one number or 2, one per axis"):
        MultivariateGaussianBasis.covering((3, 4, 5))


def test_spanning_may_choose_widths_too():
    positions = torch.linspace(0, 300, 100)
    torch.testing.assert_close(
        GaussianBasis.spanning(positions, 31, scale=None).scale, GaussianBasis.covering(31, high=300.0).scale
    )
    places = torch.cartesian_prod(torch.linspace(0, 360, 20), torch.linspace(0, 180, 20))
    basis = MultivariateGaussianBasis.spanning(places, (9, 5), scale=None)
    torch.testing.assert_close(basis.covariance_matrix[0], torch.tensor([36.0**2, 36.0**2]).diag())


@pytest.mark.parametrize("penalty", [0.01, 0.001])
@pytest.mark.parametrize(("length", "num"), [(50, 32), (100, 32), (200, 64), (1000, 64)])
def test_waves_of_three_spacings_are_followed(length, num, penalty):
    t = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    spacing = 1 / (num - 1)
    basis = GaussianBasis.covering(num)
    assert explained(basis, waves(t, [1.0, 0.3]), penalty=penalty) > 0.999
    assert explained(basis, waves(t, [3 * spacing]), penalty=penalty) > 0.98
    assert explained(basis, waves(t, [spacing]), penalty=penalty) < 0.2
    # Between the observations as well: nothing is lost in gaps between the functions.
    signal = contmax.fit_signal(waves(t, [4 * spacing]), basis, penalty=penalty)
    between = (t[1:] + t[:-1]) / 2
    assert (signal(between) - waves(between, [4 * spacing])).abs().mean() < 0.05


def test_no_other_width_does_much_better():
    t = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    values = torch.randn(200, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = values.cumsum(0)
    values = values - values.mean(0)
    share = explained(GaussianBasis.covering(40), values)
    for width in (0.3, 0.5, 0.7, 0.9, 1.2, 2.0):
        assert explained(GaussianBasis.linspace(40, scale=width / 39), values) < share + 1e-3
    design = GaussianBasis.covering(40)(t.float()).double()
    assert torch.linalg.cond(design.mT @ design) < 1e3


def test_a_feature_map_that_narrow_functions_lose():
    rows = (torch.arange(16, dtype=torch.float64) + 0.5) / 16
    image = waves(rows, [0.9, 0.5])[:, None, :] * waves(rows, [0.8, 0.6])[None, :, :]
    values = image.reshape(256, -1)
    narrow = explained(MultivariateGaussianBasis.grid(10, scale=0.001**0.5), values, grid=(16, 16))
    covering = explained(MultivariateGaussianBasis.covering(10), values, grid=(16, 16))
    assert narrow < 0.9
    assert covering > 0.999


def test_spanning_has_the_widths_of_covering_unless_told_otherwise():
    """Nine and a half periods over an interval are followed with 64 functions, in any unit."""
    for unit in (1e-6, 1.0, 3600.0, 1e9):
        t = unit * torch.rand(400, dtype=torch.float64)
        values = torch.sin(2 * math.pi * 9.5 * t / unit)[:, None]
        basis = GaussianBasis.spanning(t, 64)
        assert contmax.fit_signal(values, basis, positions=t).explained_variance() > 0.999
        wide = GaussianBasis.spanning(t, 64, scale=0.1)
        torch.testing.assert_close(wide.scale, (0.1 * (t.max() - t.min())).expand(64))
    places = torch.rand(100, 2) * torch.tensor([360.0, 180.0])
    covariance = MultivariateGaussianBasis.spanning(places, (9, 5)).covariance_matrix[0]
    sides = places.amax(0) - places.amin(0)
    torch.testing.assert_close(covariance, (0.8 * sides / torch.tensor([8.0, 4.0])).square().diag())


def test_unix_times_in_float32_are_called_rounded():
    times = 1.7e9 + torch.linspace(0, 3600, 200, dtype=torch.float64)
    with pytest.warns(UserWarning, match=r"rounded to multiples of 128 in float32.*float64"):
        GaussianBasis.spanning(times.float(), 64)
    with pytest.warns(UserWarning, match=r"multiples of 128 in float32"):
        GaussianBasis.covering(64, low=1.7e9, high=1.7e9 + 86400)
    with pytest.warns(UserWarning, match=r"multiples of 128 in float32"):
        MultivariateGaussianBasis.spanning(torch.stack([times, times - 1.7e9], -1).float(), (16, 4))
    with pytest.raises(ValueError, match=r"all of them are 1700000000, and float32 rounds such numbers .* of 128"):
        GaussianBasis.spanning((1.7e9 + torch.rand(50, dtype=torch.float64)).float(), 8)
    assert GaussianBasis.spanning(times, 64).loc.dtype == torch.float64  # warnings are errors here
    GaussianBasis.spanning((1.7e9 + 3e7 * torch.rand(50, dtype=torch.float64)).float(), 64)  # a year

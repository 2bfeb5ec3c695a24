"""How densely a sequence was observed, and what each observation adds to a signal: both from positions alone."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.signal import fit_intensity, fit_signal, ridge_weights

BASIS = GaussianBasis.covering(8)
POSITIONS = torch.rand(3, 40)
MASK = torch.rand(3, 40) > 0.3


def test_the_intensity_minimises_its_error():
    """Its gradient, of the integral on a fine grid and of the penalty, is zero."""
    intensity = fit_intensity(POSITIONS, BASIS, mask=MASK, penalty=0.02).coefficients.squeeze(-1).double()
    low, high = (end.double() for end in BASIS.bounds)
    values = BASIS(low + (high - low) * (torch.arange(20000).double() + 0.5) / 20000)
    gram = values.mT @ values * (high - low) / 20000
    seen = (BASIS(POSITIONS.double()) * MASK.unsqueeze(-1)).sum(-2)
    slope = intensity @ gram + 0.02 / float(BASIS.volume) * intensity - seen
    assert slope.abs().max() < 1e-3 * seen.abs().max()


@pytest.mark.parametrize("fit", [fit_intensity, ridge_weights])
def test_masked_positions_do_not_count(fit):
    def found(positions, mask):
        result = fit(positions, BASIS, mask=mask)
        return result.coefficients if fit is fit_intensity else result

    broken = torch.where(MASK, POSITIONS, torch.nan)
    torch.testing.assert_close(found(broken, MASK), found(POSITIONS, MASK))
    shared = found(POSITIONS[0], MASK)  # one sequence of positions, three masks
    torch.testing.assert_close(shared[1], found(POSITIONS[0], MASK[1]))
    with pytest.raises(ValueError, match=r"NaN or infinite.*mask=positions.isfinite"):
        fit(broken, BASIS)


def test_weights_are_those_of_the_signal():
    values = torch.randn(3, 40, 2)
    signal = fit_signal(values, BASIS, positions=POSITIONS, mask=MASK)
    weights = ridge_weights(POSITIONS, BASIS, mask=MASK)
    torch.testing.assert_close(weights.mT @ values, signal.coefficients, atol=1e-4, rtol=1e-4)
    assert (weights[~MASK] == 0).all()
    plane = contmax.basis.MultivariateGaussianBasis.covering(3)
    assert ridge_weights(torch.rand(10, 2), plane).shape == (10, 9)

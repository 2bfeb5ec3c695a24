"""Densities on a GPU: nothing in a forward or backward pass waits, and results are those of the CPU."""

import pytest
import torch
from density_families import ALL, Family
from torch.distributions import Independent, Uniform

from contmax.densities import Empirical, MultivariateBetaGaussian
from cuda_checks import DEVICE, F32, Fixed, assert_accurate, without_waiting

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ALL, ids=str)
def test_no_waiting_and_same_numbers(family: Family):
    host = family.make()
    t = host.mean + 0.3 * host.stddev
    parameters = {name: value.to(DEVICE).requires_grad_() for name, value in family.tensors().items()}
    points, level = t.to(DEVICE), torch.full_like(t, 0.3).to(DEVICE)

    def call():
        p = family.build(**parameters)
        values = family.said_by(p, points, level)
        live = [value.nan_to_num().sum() for value in values if value.requires_grad]
        torch.autograd.grad(sum(live[1:], live[0]), list(parameters.values()), allow_unused=True)
        return values

    values = without_waiting(call)
    torch.testing.assert_close(values[0].cpu(), host.log_prob(t), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(values[2].cpu(), host.variance, rtol=1e-10, atol=1e-12)
    if not host.event_shape:
        torch.testing.assert_close(values[-2].cpu(), host.cdf(t), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(values[-1].cpu(), host.icdf(torch.full_like(t, 0.3)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", ALL, ids=str)
def test_single_precision_with_gradients(family: Family):
    """Every quantity in float32 on the device against float64 on the CPU, with its gradients in all parameters."""
    host = family.make(F32)
    t = Fixed((host.mean + 0.3 * host.stddev).float())

    def asked(points, *parameters):
        p = family.build(**dict(zip(family.parameters, parameters, strict=True)))
        return [p.density(points), p.variance, *([] if p.event_shape else [p.cdf(points)])]

    assert_accurate(asked, [t, *family.tensors(F32).values()], tolerance=5e-5)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_overlaps_do_not_wait(dim):
    centers = torch.linspace(0.0, 1.0, 2 * 5 * dim, dtype=torch.float64).reshape(2, 5, dim)
    low, high = torch.full((dim,), 0.2, dtype=torch.float64), torch.full((dim,), 0.9, dtype=torch.float64)

    def overlaps(first, second, low, high):
        densities = [
            MultivariateBetaGaussian(c, scale_diag=torch.full_like(c, s), alpha=1.5, validate_args=False)
            for c, s in ((first, 0.2), (second, 0.3))
        ]
        box = Independent(Uniform(low, high, validate_args=False), 1)
        return densities[0].iou(densities[1]), densities[0].iou(box), densities[0].area, densities[0].semi_axes

    on_host = overlaps(*centers, low, high)
    there = [x.to(DEVICE) for x in (*centers, low, high)]
    for result, expected in zip(without_waiting(lambda: overlaps(*there)), on_host, strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-9, atol=1e-10)


def test_samples_as_a_density():
    def asked(samples, weights):
        p = Empirical(samples, weights, event_dim=0, validate_args=False)
        return p.mean, p.variance

    assert_accurate(asked, [torch.rand(3, 20), Fixed(torch.rand(3, 20) + 0.1)], tolerance=1e-6)

"""On a GPU nothing in a forward or backward pass waits for the device, and results are those of the CPU."""

import pytest
import torch
from density_families import ALL, Family
from torch.distributions import Independent, Uniform

from contmax.densities import MultivariateBetaGaussian

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def check_family(family: Family) -> None:
    """Everything once to load libraries and constants, then once more with waiting forbidden."""
    host = family.make()
    t = host.mean + 0.3 * host.stddev
    parameters = {name: value.cuda().requires_grad_() for name, value in family.tensors().items()}
    points = t.cuda()
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            p = family.build(**parameters)
            values = [p.log_prob(points), p.density(points), p.variance]
            if "mixture" not in family.name:
                values += [p.entropy(), p.tsallis_negentropy(), p.conjugate(), p.threshold]
                values += [p.rsample((4,)) if p.has_rsample else p.sample((4,))]
            if not p.event_shape:
                values += [p.cdf(points), p.icdf(torch.full_like(points, 0.3))]
            live = [value.nan_to_num().sum() for value in values if value.requires_grad]
            torch.autograd.grad(sum(live[1:], live[0]), list(parameters.values()), allow_unused=True)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(values[0].cpu(), host.log_prob(t), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(values[2].cpu(), host.variance, rtol=1e-10, atol=1e-12)
    if not p.event_shape:
        torch.testing.assert_close(values[-2].cpu(), host.cdf(t), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(values[-1].cpu(), host.icdf(torch.full_like(t, 0.3)), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", ALL, ids=str)
def test_no_waiting_and_same_numbers(family):
    check_family(family)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_overlaps_do_not_wait(dim):
    centers = torch.linspace(0.0, 1.0, 2 * 5 * dim, dtype=torch.float64).reshape(2, 5, dim)
    low, high = torch.full((dim,), 0.2, dtype=torch.float64), torch.full((dim,), 0.9, dtype=torch.float64)

    def overlaps(device):
        first, second = (
            MultivariateBetaGaussian(c.to(device), scale_diag=torch.full_like(c, s).to(device), alpha=1.5)
            for c, s in zip(centers, (0.2, 0.3), strict=True)
        )
        box = Independent(Uniform(low.to(device), high.to(device), validate_args=False), 1)
        return first.iou(second), first.iou(box), first.area, first.semi_axes

    on_host = overlaps("cpu")
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            results = overlaps("cuda")
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for result, expected in zip(results, on_host, strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-9, atol=1e-10)

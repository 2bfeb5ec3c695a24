"""On a GPU nothing in a forward or backward pass waits for the device, and results are those of the CPU."""

import pytest
import torch
from density_families import ALL, Family

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

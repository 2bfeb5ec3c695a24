"""Where a model looks is measured on a GPU too, on the line and on the plane."""

import pytest
import torch

from cuda_checks import DEVICE

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "yaml"):
    pytest.importorskip(package)

from contmax.densities import TruncatedParabola, TruncatedParaboloid  # noqa: E402, below what may be missing
from contmax_lab.attention import Attended  # noqa: E402
from contmax_lab.tasks.places._attention import Scene, agreement, looked  # noqa: E402


def measured(device, dim):
    torch.manual_seed(0)
    side = (torch.arange(8) + 0.5) / 8
    where = torch.cartesian_prod(*[side] * dim).reshape(1, -1, dim).expand(3, -1, -1).to(device)
    weights = torch.softmax(4 * torch.randn(where.shape[:2]), -1).to(device)
    loc, width = torch.rand(3, dim).to(device), torch.full((3,), 0.05, device=device)
    density = TruncatedParabola(loc[:, 0], width)
    if dim == 2:
        density = TruncatedParaboloid(loc, width[:, None, None] * torch.eye(2, device=device))
    scene = Scene(where, where, where, torch.ones_like(weights, dtype=torch.bool), grid=(8, 8) if dim == 2 else None)
    low = 0.5 * torch.rand(3, dim).to(device)
    found = agreement(looked(scene, Attended(loc, weights, density)), low, low + 0.3)
    return {name: value.cpu() for name, value in found.items()}


@pytest.mark.parametrize("dim", [1, 2])
def test_measures_are_those_of_the_cpu(dim):
    torch.testing.assert_close(measured(DEVICE, dim), measured("cpu", dim), rtol=1e-4, atol=2e-3)

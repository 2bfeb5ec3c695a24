"""More than 2³¹ rows on a GPU: those at the end, and where parts and 32 bits end, are as in float64."""

import pytest
import torch

import contmax
from contmax.kernels import means
from contmax.kernels.losses import row_losses, row_losses_backward
from contmax.losses import entmax_loss
from cuda_checks import BF16, DEVICE, F64, ON_GPU, torch_path

ROWS = 2**31 + 5
LOOKED_AT = [0, 2**28 - 1, 2**28, 2**31 - 1, 2**31, ROWS - 2, ROWS - 1]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs the memory of a GPU")]


@pytest.fixture(autouse=True)
def _empty_memory():
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def require(gigabytes):
    if torch.cuda.mem_get_info()[0] < gigabytes * 10**9:
        pytest.skip(f"needs {gigabytes} GB of free memory on the GPU")


def rows_with(values, fill=0.0):
    """A tensor of as many rows, which are all the same but for those that are looked at: they have these values."""
    tensor = torch.full((ROWS, *values.shape[1:]), fill, dtype=values.dtype, device=DEVICE)
    for row, value in zip(LOOKED_AT, values.to(DEVICE), strict=True):
        tensor[row] = value
    return tensor


def looked_at(tensor):
    return torch.stack([tensor[row] for row in LOOKED_AT]).double().cpu()


def scores():
    return torch.linspace(-0.75, 0.75, 2 * len(LOOKED_AT)).reshape(-1, 2).to(BF16)


def cotangents():
    return torch.linspace(2, -1, 2 * len(LOOKED_AT)).reshape(-1, 2).cos().to(BF16)


def assert_close(got, expected, tolerance=1e-2):
    """Within the rounding of bfloat16; most of the numbers differ by more from each other."""
    torch.testing.assert_close(got, expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("alpha", [1.5, 1.7])
def test_maps(alpha):
    require(60)
    x, g = rows_with(scores()).requires_grad_(), rows_with(cotangents())
    p = contmax.entmax(x, alpha)
    (grad,) = torch.autograd.grad(p, x, g)
    exact = scores().double().requires_grad_()
    with torch_path():
        expected = contmax.entmax(exact, alpha)
        (expected_grad,) = torch.autograd.grad(expected, exact, cotangents().double())
    assert_close(looked_at(p.detach()), expected.detach())
    assert_close(looked_at(grad), expected_grad)
    assert (p.detach()[-1000:-10] == 0.5).all()  # rows of equal scores


@pytest.mark.parametrize("soft", [False, True])
def test_losses(soft):
    require(100)
    ids = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    targets = torch.nn.functional.one_hot(ids, 2).to(BF16) * 0.5 + 0.25
    z, g = rows_with(scores()), torch.ones((), dtype=F64, device=DEVICE).expand(ROWS)
    exact = scores().double().requires_grad_()
    with torch_path():
        expected = entmax_loss(exact, targets.double() if soft else ids, 1.5, reduction="none")
    target = rows_with(targets, fill=0.5) if soft else rows_with(ids.to(torch.int32), fill=0)
    losses, statistics = row_losses(z, target, None, 1.5, 0.0)
    grad, _ = row_losses_backward(z, target, None, 1.5, 0.0, statistics, g, False)
    assert_close(looked_at(losses), expected.detach(), 1e-3)
    assert_close(looked_at(grad), torch.autograd.grad(expected.sum(), exact)[0])
    assert (losses[-1000:-10] == losses[-1000]).all()


def test_means_on_the_line():
    require(40)
    loc, scale = torch.linspace(0, 1, len(LOOKED_AT)), torch.full((1,), 0.3, device=DEVICE)
    centre, width = torch.tensor([0.4]), torch.tensor([0.2])
    basis = (centre.to(DEVICE), width.to(DEVICE))
    got = means.gaussian_means(rows_with(loc), scale.expand(ROWS), None, *basis, means.LINE, 1.0)
    density = contmax.densities.BetaGaussian(loc.double(), torch.tensor(0.3, dtype=F64), 2.0)
    basis = contmax.basis.GaussianBasis(centre.double(), width.double())
    with torch_path():
        expected = contmax.expectation(density, basis)
    assert_close(looked_at(got), expected, 1e-5)

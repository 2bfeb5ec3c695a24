"""What is masked never matters to a map: scores, weights and positions, results and every gradient."""

import math

import pytest
import torch

import contmax
from masked_checks import ALL, FILLERS, assert_never_matters

MASKS = {
    "of rows": torch.rand(4, 9, generator=torch.Generator().manual_seed(0)) > 0.4,
    "of columns": torch.arange(9) % 3 != 1,
    "of all but one row": (torch.arange(4) != 2)[:, None].expand(4, 9),
}
ALPHAS = [0.8, 1.0, 1.01, 1.5, 1.7, 2.0, 2.5, torch.tensor(1.4), torch.tensor([[1.0], [1.3], [2.0], [3.0]])]


def check(alpha, mask, filler, dtype=torch.float32, rounding=0.0, **options):
    given, places = [torch.randn(4, 9).to(dtype)], [mask]
    if isinstance(alpha, torch.Tensor):
        given, places = [*given, alpha], [mask, None]

    def call(scores, index=alpha):
        return [contmax.entmax(scores, index, mask=mask, **options)]

    assert_never_matters(call, given, places, filler, rounding=rounding)


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_maps(alpha, mask, filler):
    check(alpha, MASKS[mask], filler)
    check(alpha, MASKS[mask], filler, temperature=0.7)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("alpha", [1.5, 1.7, 2.5, torch.tensor(1.4)])
def test_maps_by_triton(alpha, dtype):
    check(alpha, MASKS["of rows"], ALL, dtype)


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_moments(mask, dim):
    may = MASKS[mask].expand(4, 9)
    weights = contmax.softmax(torch.randn(4, 9), mask=may)
    positions = torch.rand(4, 9) if dim == 1 else torch.rand(4, 9, dim)
    places = [may, may if dim == 1 else may.unsqueeze(-1)]
    assert_never_matters(lambda p, t: contmax.maps.moments(p, t, mask=MASKS[mask]), [weights, positions], places, ALL)


def test_a_nan_that_may_be_attended_is_not_hidden():
    scores = torch.randn(4, 9)
    scores[1, 2] = math.nan
    p = contmax.entmax(scores, 1.5, mask=torch.arange(9) < 5)
    assert p.isnan().any(-1).tolist() == [False, True, False, False]

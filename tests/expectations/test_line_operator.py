"""The opaque operator behind compiled expectations of any index: what tracers, vmap and inference mode see of it."""

import pytest
import torch

from contmax.expectations._line_scales import line_scale_means

F64 = torch.float64


@pytest.fixture(params=[1.0, 0.6], ids=["by the kernel", "heavy tails too"])
def arguments(request):
    densities = torch.rand(3, 3, 2, dtype=F64) + torch.tensor([0.0, 0.1, request.param], dtype=F64).view(3, 1, 1)
    centre, width = torch.rand(2, 4, dtype=F64) + 0.1
    return densities[0], densities[1], densities[2], centre, width, 0.0


def test_vmap_over_densities_and_over_bases(arguments):
    loc, scale, index, centre, width, _ = arguments
    values, slopes = line_scale_means(*arguments)
    together = torch.vmap(line_scale_means, in_dims=(0, 0, 0, None, None, None))(*arguments)
    torch.testing.assert_close(together, (values, slopes))
    centres = torch.stack([centre, centre + 0.2, centre - 0.3])
    together = torch.vmap(line_scale_means, in_dims=(0, 0, 0, 0, None, None))(loc, scale, index, centres, width, 0.0)
    alone = [line_scale_means(*row, width, 0.0) for row in zip(loc, scale, index, centres, strict=True)]
    for got, expected in zip(together, zip(*alone, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(expected))


def test_what_tracers_are_told_is_what_it_returns(arguments):
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.contmax.line_scale_means.default, arguments, test_utils=checks)
    torch.library.opcheck(
        torch.ops.contmax.line_scale_means.default, (*arguments[:2], None, *arguments[3:5], 1.7), test_utils=checks
    )


def test_in_inference_mode(arguments):
    expected = line_scale_means(*arguments)
    with torch.inference_mode():
        copies = (x.clone() if isinstance(x, torch.Tensor) else x for x in arguments)
        torch.testing.assert_close(line_scale_means(*copies), expected)

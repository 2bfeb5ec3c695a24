"""The opaque operators that stand for hundreds of operations in a compiled graph: what tracers and vmap see of them."""

import pytest
import torch
from torch.utils._pytree import tree_map, tree_map_only

import contmax.expectations._scale_mean
import contmax.integrations.entmax.root_finding
import contmax.numerics  # noqa: F401, registers its operators

F64 = torch.float64


def _plane(order):
    numbers = list(torch.rand(5, 3, 2, dtype=F64) + 0.1)
    return [*numbers, order] if isinstance(order, torch.Tensor) else numbers


def _space():
    factor = torch.randn(3, 2, 3, 3, dtype=F64)
    return [factor @ factor.mT + torch.eye(3, dtype=F64), torch.randn(3, 2, 3, dtype=F64)]


# Tensors with a batch in front, then what else an operator takes.
CASES = {
    "half_line_shares": lambda: ((torch.rand(3, 4, dtype=F64) + 0.1, 1.5, *torch.rand(2, 3, 4, dtype=F64)), ()),
    "scale_means": lambda: ((_space(),), (False, 3.5, False, True)),
    "scale_means of one number": lambda: ((_space(),), (False, -4.5, True, False)),
    "scale_means of any index": lambda: (
        (_plane(torch.linspace(3, 9, 6, dtype=F64).reshape(3, 2)),),
        (True, None, False, True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_tracers_are_told_is_what_they_return_and_vmap_is_a_loop(case):
    operator = getattr(torch.ops.contmax, case.split()[0]).default
    batched, options = CASES[case]()
    torch.library.opcheck(operator, (*batched, *options), test_utils=("test_schema", "test_faketensor"))
    places = tree_map(lambda x: 0 if isinstance(x, torch.Tensor) else None, batched)
    together = torch.vmap(lambda *tensors: operator(*tensors, *options), in_dims=places)(*batched)
    rows = [operator(*tree_map_only(torch.Tensor, lambda x, i=i: x[i], batched), *options) for i in range(3)]
    if isinstance(together, torch.Tensor):
        together, rows = [together], [[row] for row in rows]
    for got, expected in zip(together, zip(*rows, strict=True), strict=True):
        torch.testing.assert_close(got, torch.stack(expected))

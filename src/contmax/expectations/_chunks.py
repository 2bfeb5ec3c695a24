"""Expectations by torch's operations in bounded memory: a chunk of the densities at a time.

Each pair of a density and a function takes tensors of all nodes, up to a thousand times its share of the result. The
number of pairs alone decides about chunks. Where torch would save too much of all chunks for the backward pass, nothing
is saved, and the backward pass computes each chunk again, in twice the time.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contmax._by_reference import Reference
from contmax._eager import all_hold_numbers

_MOST_CHUNKS = 512
# Bytes that an expectation may save for its backward pass.
_MOST_SAVED = 2**26


class Fewest(NamedTuple):
    """Pairs of one chunk, at least: with fewer, overheads of torch's operations would count.

    Attributes:
        on_cpu: their number on a CPU.
        elsewhere: their number on an accelerator.
        saved: bytes that torch saves of a pair for the backward pass, about; 0 for none but the result.
    """

    on_cpu: int
    elsewhere: int
    saved: int

    def densities_of_chunk(self, densities: int, functions: int, device: torch.device) -> int:
        """The number of densities in one chunk."""
        functions = max(functions, 1)
        fewest = self.on_cpu if device.type == "cpu" else self.elsewhere
        return max(1, max(fewest, densities * functions // _MOST_CHUNKS) // functions)


def in_chunks(
    reference: Reference, densities: Sequence[Tensor | None], basis: Sequence[Tensor], batch_dims: int, fewest: Fewest
) -> Tensor:
    """`reference(*densities, *basis)`, (*batch, K), in chunks where there are many pairs.

    Args:
        reference: differentiable to every order, without tensors of its own.
        densities: parameters of the densities, (*batch, …), all of the same batch; None stays None.
        basis: those of the functions, (K, …).
        batch_dims: the number of dimensions of the batch.
        fewest: pairs of one chunk, at least.
    """
    if torch.compiler.is_compiling():  # a tracer knows no sizes
        return reference(*densities, *basis)
    batch = next(x.shape[:batch_dims] for x in densities if x is not None)
    count = batch.numel()
    size = fewest.densities_of_chunk(count, basis[0].shape[0], basis[0].device)
    if count <= size:
        return reference(*densities, *basis)
    # Transforms of torch.func refuse the hooks of a checkpoint.
    if count * basis[0].shape[0] * fewest.saved > _MOST_SAVED and all_hold_numbers(*densities, *basis):
        reference = partial(
            checkpoint, reference, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
    flat = [None if x is None else x.reshape(-1, *x.shape[batch_dims:]).split(size) for x in densities]
    chunks = ([None if x is None else x[i] for x in flat] for i in range(-(-count // size)))
    r = torch.cat([reference(*chunk, *basis) for chunk in chunks])
    return r.reshape(*batch, r.shape[-1])

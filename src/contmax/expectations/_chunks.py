"""Expectations by torch operations in bounded memory: a chunk of the densities at a time.

A pair of a density and a basis function takes tensors over all nodes, up to a thousand times the memory of its result.
So densities are processed in chunks, whose size depends on the device and the number of pairs only. If torch would save
more than `_MOST_SAVED` bytes for the backward pass, checkpoints save the inputs only, and the backward pass recomputes
each chunk, in twice the time.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contmax._autograd import Reference
from contmax._eager import all_hold_numbers

_MOST_CHUNKS = 512
# Most bytes that torch may save for the backward pass of an expectation.
_MOST_SAVED = 2**26


class Fewest(NamedTuple):
    """Pairs per chunk below which overheads of torch operations dominate, and bytes saved for a pair."""

    on_cpu: int  # the least number of pairs in a chunk on a CPU
    elsewhere: int  # the least number on an accelerator
    saved: int  # bytes per pair that torch saves for the backward pass, roughly, without the result


def in_chunks(
    reference: Reference, densities: Sequence[Tensor | None], basis: Sequence[Tensor], batch_dims: int, fewest: Fewest
) -> Tensor:
    """`reference(*densities, *basis)`, (*batch, K), in chunks of densities if there are many pairs.

    Args:
        reference: a function that is differentiable to every order and closes over no tensor.
        densities: parameters of the densities, (*batch, …) with a common batch shape; None for an absent parameter.
        basis: parameters of the functions, (K, …).
        batch_dims: the number of dimensions of the batch.
        fewest: the least number of pairs in a chunk, and the memory saved for a pair.
    """
    if torch.compiler.is_compiling():  # sizes may be symbolic
        return reference(*densities, *basis)
    batch = next(x.shape[:batch_dims] for x in densities if x is not None)
    count, functions = batch.numel(), max(basis[0].shape[0], 1)
    pairs = fewest.on_cpu if basis[0].device.type == "cpu" else fewest.elsewhere
    size = max(1, max(pairs, count * functions // _MOST_CHUNKS) // functions)
    if count <= size:
        return reference(*densities, *basis)
    # Use no checkpoint under torch.func, whose transforms refuse its hooks.
    if count * functions * fewest.saved > _MOST_SAVED and all_hold_numbers(*densities, *basis):
        reference = partial(
            checkpoint, reference, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )
    flat = [None if x is None else x.reshape(-1, *x.shape[batch_dims:]).split(size) for x in densities]
    chunks = ([None if x is None else x[i] for x in flat] for i in range(-(-count // size)))
    r = torch.cat([reference(*chunk, *basis) for chunk in chunks])
    return r.reshape(*batch, r.shape[-1])

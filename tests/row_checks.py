"""What tests of rows by triton's kernels share: long rows in small, and torch in float64 as the judge."""

import contextlib

import pytest
import torch

from contmax.kernels import _backends


def reference(function, *arguments):
    """The same by torch in float64: no kernel takes float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backends.NUMBA, "works", False)
        return function(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments))


@contextlib.contextmanager
def short_rows_by_lists(longest, chunk, in_slices, short):
    """A context in which rows of more than `longest` scores are listed, by chunks and slices (scores, slots)."""
    from contmax.kernels.triton import _class_losses, _launch, _maps, _plain_rows, _soft_losses

    # Launches are kept by shape, and know the limits.
    kept = [_plain_rows.plain_rows_like, _maps.backward_of_rows]
    kept += [_class_losses._losses, _class_losses._gradient, _soft_losses._losses, _soft_losses._gradient]
    for launches in kept:
        launches.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("LONGEST_ON_CHIP", "LONGEST_WITH_LOGARITHMS", "LONGEST_BACKWARD"):
            patch.setattr(_maps, limit, longest)
        patch.setattr(_class_losses, "LONGEST_ON_CHIP", longest)
        for module in (_launch, _class_losses, _soft_losses):
            patch.setattr(module, "CHUNK", chunk)
        patch.setattr(_launch, "_SLICES_OF_FEW", in_slices)
        patch.setattr(_launch, "_SHORT", short)
        yield
    for launches in kept:
        launches.cache_clear()

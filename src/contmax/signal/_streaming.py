"""One signal from a sequence that does not fit in memory, or that is spread over machines."""

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu
from contmax._precision import wide_dtype
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.signal._arguments import check_places, require_penalty
from contmax.signal._explained_variance import explained_variance_of_sums
from contmax.signal._positions import finite_where_masked, warn_if_far_outside, warn_if_rounded
from contmax.signal._ridge import solve_gram
from contmax.signal._signal import Signal


class SignalAccumulator:
    r"""Sufficient statistics of a ridge fit, ΨΨᵀ and ΨHᵀ, accumulated over chunks or processes.

    The signal is the same, up to rounding in float64, as that of :func:`fit_signal` on all observations at once.

    Args:
        basis: ψ, K functions.
        penalty: λ ≥ 0, relative to the volume of the basis as in :func:`fit_signal`.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(16, scale=0.1)
        >>> stream = contmax.SignalAccumulator(basis)
        >>> for start in range(0, 1000, 100):
        ...     t = (torch.arange(start, start + 100) + 0.5) / 1000
        ...     stream.update(torch.cos(t)[:, None], t)
        >>> stream.signal().coefficients.shape
        torch.Size([16, 1])
    """

    def __init__(self, basis: Basis, penalty: float = 0.01) -> None:
        require_penalty(penalty)
        self.basis, self.penalty = basis, penalty
        self._gram: Tensor | None = None
        self._cross: Tensor | None = None
        # The number of observations, their sum, and the sum of their squares.
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None
        self._dtype = torch.get_default_dtype()

    def update(
        self,
        values: Float[Tensor, "..."],
        positions: Float[Tensor, "..."],
        mask: Bool[Tensor, "..."] | None = None,
    ) -> None:
        """Add observations (*batch, L, D) made at positions (L,) or (*batch, L); (…, N) in N > 1 dimensions.

        Raises:
            ValueError: if shapes do not fit each other, or batch or channels are not those of the observations so far.
            TypeError: if the mask is not boolean.
        """
        check_places(values, self.basis, positions, mask)
        where = positions.double()
        if mask is not None:
            where = finite_where_masked(where, mask, self.basis.event_dim)
        design = self.basis(where).double()
        warn_if_rounded(positions.dtype, self.basis)
        warn_if_far_outside(where, design, self.basis, mask)
        wide = values.double()
        if mask is not None:
            design = torch.where(mask.unsqueeze(-1), design, 0)
            wide = torch.where(mask.unsqueeze(-1), wide, 0)
        counts = torch.ones_like(wide[..., 0]) if mask is None else mask.double().expand(wide.shape[:-1])
        sums = counts.sum(-1), wide.sum(-2), wide.square().sum((-2, -1))
        self._add(design.mT @ design, design.mT @ wide, sums, values.dtype)

    def merge(self, other: "SignalAccumulator") -> None:
        """Add the observations of another accumulator over the same basis, or one with equal functions.

        Raises:
            ValueError: if the functions differ, or batch or channels of the observations do.
        """
        if not _same_functions(self.basis, other.basis):
            raise ValueError(
                f"Cannot merge an accumulator over {other.basis} into one over {self.basis}: their functions differ, "
                "and both must use the same basis."
            )
        if other._gram is not None and other._cross is not None and other._sums is not None:
            self._add(other._gram, other._cross, other._sums, other._dtype)

    def all_reduce(self, group: "torch.distributed.ProcessGroup | None" = None) -> None:
        """Add up the statistics of all processes of a group; each then holds those of the whole sequence."""
        gram, cross, sums = self._statistics()
        gram, cross, count, first, second = (statistic.contiguous().clone() for statistic in (gram, cross, *sums))
        for statistic in (gram, cross, count, first, second):
            torch.distributed.all_reduce(statistic, group=group)
        self._gram, self._cross, self._sums = gram, cross, (count, first, second)

    def signal(self) -> Signal:
        """The signal through all observations so far."""
        gram, cross, sums = self._statistics()
        coefficients = solve_gram(gram, cross, self.penalty, self.basis.volume)
        explained = explained_variance_of_sums(coefficients, gram, cross, sums)
        wide = wide_dtype(self._dtype)
        return Signal(self.basis, coefficients=coefficients.to(wide), explained=explained.to(wide), dtype=self._dtype)

    def _add(self, gram: Tensor, cross: Tensor, sums: tuple[Tensor, Tensor, Tensor], dtype: torch.dtype) -> None:
        if self._cross is not None and self._cross.shape != cross.shape:
            (*batch, _, channels), (*others, _, more) = self._cross.shape, cross.shape
            raise ValueError(
                f"Observations of batch shape {tuple(others)} and {more} channels cannot be added to those of batch "
                f"shape {tuple(batch)} and {channels} channels. Use one accumulator for each."
            )
        self._gram = gram if self._gram is None else self._gram + gram
        self._cross = cross if self._cross is None else self._cross + cross
        if self._sums is not None:
            count, first, second = self._sums
            sums = count + sums[0], first + sums[1], second + sums[2]
        self._sums, self._dtype = sums, dtype

    def _statistics(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        if self._gram is None or self._cross is None or self._sums is None:
            raise ValueError("The accumulator has seen no observations. Call update(values, positions) first.")
        return self._gram, self._cross, self._sums


def _same_functions(one: Basis, other: Basis) -> bool:
    """Whether two bases have equal functions, as copies do; on an accelerator values are not compared."""
    if one is other:
        return True
    kinds = [(type(basis), basis.num_functions, basis.event_dim) for basis in (one, other)]
    mine, others = one.state_dict(), other.state_dict()
    shapes = [{name: constant.shape for name, constant in constants.items()} for constants in (mine, others)]
    if kinds[0] != kinds[1] or shapes[0] != shapes[1]:
        return False
    if not is_eager_cpu(*mine.values(), *others.values()):
        return True
    if not all(torch.allclose(mine[name].double(), others[name].double(), rtol=1e-5, atol=0) for name in mine):
        return False
    # Functions may also depend on numbers that are not in a state dict.
    low, high = (corner.detach().double() for corner in one.bounds)
    share = torch.linspace(0, 1, 33, dtype=torch.float64)
    points = low + (high - low) * (share if one.event_dim == 1 else share.unsqueeze(-1))
    return torch.allclose(one(points).double(), other(points).double(), rtol=1e-5, atol=1e-8, equal_nan=True)

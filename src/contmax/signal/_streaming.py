"""One signal from a sequence that does not fit in memory, or that is spread over machines."""

from typing import NamedTuple

import torch
from torch import Tensor

from contmax._eager import is_eager_cpu, wide_dtype
from contmax._typing import Bool, Float
from contmax.basis import Basis
from contmax.signal._observations import check_observations, design_at, require_penalty, unmasked
from contmax.signal._ridge import explained_share, factored, solved
from contmax.signal._signal import Signal


class _Sums(NamedTuple):
    """Sums over observations H, (*batch, L, D), with design F = ψ(t_ℓ), (*batch, L, K), in float64."""

    gram: Tensor  # FᵀF, (*batch, K, K), or (K, K) for the whole batch
    cross: Tensor  # FᵀH, (*batch, K, D)
    number: Tensor  # the number of unmasked observations, (*batch)
    total: Tensor  # Σ_ℓ h_ℓ, (*batch, D)
    squares: Tensor  # Σ_ℓ ‖h_ℓ‖², (*batch)

    def explained_variance(self, coefficients: Tensor) -> Tensor:
        r"""The share of the variance that coefficients B explain; inexact if the mean is large relative to the spread.

        .. math:: \sum\|h-V\|^2 = \sum\|h\|^2 - 2\langle B, F^\top H\rangle + \langle B, F^\top F B\rangle
        """
        missed = self.squares + (coefficients * (self.gram @ coefficients - 2 * self.cross)).sum((-2, -1))
        variance = self.squares - self.total.square().sum(-1) / self.number.clamp(min=1)
        return explained_share(missed.clamp(min=0), variance, 64 * torch.finfo(torch.float64).eps * self.squares)


class SignalAccumulator:
    r"""Sufficient statistics of a ridge fit, ΨΨᵀ and ΨHᵀ, accumulated over chunks or processes.

    The signal equals, up to rounding in float64, that of :func:`fit_signal` on all observations at once.

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
        self._sums: _Sums | None = None
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
        check_observations(values, self.basis.event_dim, positions, mask)
        design, wide = design_at(positions, self.basis, mask)[1].double(), unmasked(values.double(), mask)
        counts = torch.ones_like(wide[..., 0]) if mask is None else mask.double().expand(wide.shape[:-1])
        observed = counts.sum(-1), wide.sum(-2), wide.square().sum((-2, -1))
        self._add(_Sums(design.mT @ design, design.mT @ wide, *observed), values.dtype)

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
        if other._sums is not None:
            self._add(other._sums, other._dtype)

    def all_reduce(self, group: "torch.distributed.ProcessGroup | None" = None) -> None:
        """Add up the statistics of all processes of a group; each then holds those of the whole sequence."""
        sums = _Sums(*(part.contiguous().clone() for part in self._known_sums()))
        for part in sums:
            torch.distributed.all_reduce(part, group=group)
        self._sums = sums

    def signal(self) -> Signal:
        """The signal through all observations so far."""
        sums = self._known_sums()
        coefficients = solved(factored(sums.gram, self.penalty, self.basis.volume), sums.cross)
        explained, wide = sums.explained_variance(coefficients), wide_dtype(self._dtype)
        return Signal(self.basis, coefficients=coefficients.to(wide), explained=explained.to(wide), dtype=self._dtype)

    def _add(self, sums: _Sums, dtype: torch.dtype) -> None:
        if self._sums is not None:
            if self._sums.cross.shape != sums.cross.shape:
                (*batch, _, channels), (*others, _, more) = self._sums.cross.shape, sums.cross.shape
                raise ValueError(
                    f"Observations of batch shape {tuple(others)} and {more} channels cannot be added to those of "
                    f"batch shape {tuple(batch)} and {channels} channels. Use one accumulator for each."
                )
            sums = _Sums(*map(torch.add, self._sums, sums))
        self._sums, self._dtype = sums, dtype

    def _known_sums(self) -> _Sums:
        if self._sums is None:
            raise ValueError("The accumulator has seen no observations. Call update(values, positions) first.")
        return self._sums


def _same_functions(one: Basis, other: Basis) -> bool:
    """Whether two bases have equal functions, as copies do; on an accelerator only types and shapes are compared."""
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
    # Compare values of the functions too: they may depend on attributes that are not in the state dict.
    low, high = (corner.detach().double() for corner in one.bounds)
    share = torch.linspace(0, 1, 33, dtype=torch.float64)
    points = low + (high - low) * (share if one.event_dim == 1 else share.unsqueeze(-1))
    return torch.allclose(one(points).double(), other(points).double(), rtol=1e-5, atol=1e-8, equal_nan=True)

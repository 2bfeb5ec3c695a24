"""Gaussian radial basis functions on the line."""

import math
from collections.abc import Sequence

from torch import Tensor

from contmax._eager import is_eager, wide_dtype
from contmax._typing import Bool, Float
from contmax.basis._basis import (
    Basis,
    RadialBasis,
    covering_width,
    device_for,
    evenly,
    extent,
    floating,
    least_exponent,
    listed,
    require_positive,
)


class GaussianBasis(RadialBasis):
    r"""Gaussian radial basis functions on the line.

    .. math:: \psi_j(t) = \mathcal N(t; \mu_j, \sigma_j^2)

    Args:
        loc: centres μ_j, shape (K,).
        scale: standard deviations σ_j > 0, shape (K,) or one for all.
        learnable: make μ_j and ln σ_j parameters.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(64, scale=(0.1, 0.5))
        >>> basis(torch.rand(3, 7)).shape
        torch.Size([3, 7, 64])

    Reference: Martins et al. 2020, appendix on Gaussian RBFs.
    """

    log_scale: Tensor
    fixed_scale: Tensor

    def __init__(
        self,
        loc: Float[Tensor, "..."] | Sequence[float],
        scale: Tensor | Sequence[float] | float,
        *,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        centres = floating(loc, "loc")
        widths = require_positive(floating(scale, "scale"), "scale", "Pass standard deviations.")
        if centres.dim() != 1 or widths.dim() > 1 or (widths.dim() == 1 and widths.shape != centres.shape):
            raise ValueError(
                f"loc and scale must have shape (K,); got {tuple(centres.shape)} and {tuple(widths.shape)}. "
                "A basis on the plane or in space is a MultivariateGaussianBasis."
            )
        device = device_for(loc)
        widths = widths.to("meta" if widths.is_meta else centres.device, centres.dtype).expand_as(centres).clone()
        constants = {"log_scale": widths.log()} if learnable else {"fixed_scale": widths}
        self._register_radial(centres, widths, constants, learnable, device)

    @property
    def scale(self) -> Float[Tensor, " K"]:
        """Standard deviations σ_j."""
        return self.log_scale.exp() if self.learnable else self.fixed_scale

    @property
    def _deviations(self) -> Tensor:
        return self.scale

    @classmethod
    def linspace(
        cls, num: int, scale: float | Sequence[float], *, low: float = 0.0, high: float = 1.0, learnable: bool = False
    ) -> "GaussianBasis":
        """`num` functions in all, shared equally among the widths; the centres of each width span [low, high].

        Args:
            num: K, a multiple of the number of widths.
            scale: one standard deviation, or several (the paper uses .1 and .5).
            low: the leftmost centre.
            high: the rightmost centre.
            learnable: make centres and widths parameters.
        """
        widths = listed(scale)
        centres = evenly(num, len(widths), low, high)
        return cls(centres, [w for w in widths for _ in range(num // len(widths))], learnable=learnable)

    @classmethod
    def covering(cls, num: int, *, low: float = 0.0, high: float = 1.0, learnable: bool = False) -> "GaussianBasis":
        r"""`num` functions at equal spacing h over [low, high], with the width that suits this spacing: σ = 0.8·h.

        .. math:: \mu_j = l + (j-1)\,h, \qquad h = \frac{u-l}{K-1}, \qquad \sigma = 0.8\,h

        Narrower functions leave gaps in which the signal is lost; wider ones are nearly dependent, so the ridge penalty
        smooths the signal. Between 0.7 and 1.0 spacings they follow as much of a signal as K functions can, and 0.8
        keeps the fit well conditioned. So K alone decides what is resolved: waves of length 3·h or more.
        ``Signal.explained_variance()`` tells how much of the observations that is.

        Args:
            num: K.
            low: l, the leftmost centre.
            high: u, the rightmost centre.
            learnable: make centres and widths parameters.

        Example:
            >>> import contmax
            >>> contmax.basis.GaussianBasis.covering(41)
            GaussianBasis(num_functions=41, scale={0.02}, learnable=False)
        """
        return cls(evenly(num, 1, low, high), [covering_width(num, low, high)] * num, learnable=learnable)

    @classmethod
    def spanning(
        cls,
        positions: Float[Tensor, "..."],
        num: int,
        scale: float | Sequence[float] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        learnable: bool = False,
    ) -> "GaussianBasis":
        r"""`num` functions over the interval that the observations cover, in the unit of their positions.

        .. math:: \mu_j = a + \frac{j-1}{K-1}\,(b-a), \qquad \sigma_j = s\,(b-a), \qquad
                  a = \min_\ell t_\ell,\ b = \max_\ell t_\ell

        By default the widths are those of :meth:`covering`, s = 0.8/(K−1), so that K decides what is resolved. Fits
        do not depend on the unit of the positions: see :func:`contmax.fit_signal`.

        Args:
            positions: t_ℓ, of any shape.
            num: K, a multiple of the number of widths.
            scale: s, one standard deviation or several, as a share of the span b − a: 0.05 is 5 % of it. None for the
                width that :meth:`covering` uses.
            mask: boolean, broadcastable to the positions; positions that are False are ignored.
            learnable: make centres and widths parameters.

        Returns:
            A basis of the dtype and on the device of the positions.

        Raises:
            ValueError: if all positions are equal, or they are not finite, or on the meta device.

        Example:
            >>> import torch, contmax
            >>> seconds = torch.linspace(0, 300, 1000)
            >>> basis = contmax.basis.GaussianBasis.spanning(seconds, 31)
            >>> basis.bounds, basis.scale[0]
            ((tensor(0.), tensor(300.)), tensor(8.))
            >>> values = torch.sin(seconds / 10)[:, None]
            >>> contmax.fit_signal(values, basis, positions=seconds).explained_variance()
            tensor(0.9999)
        """
        ((low, high),) = extent(positions, mask, 1)
        if scale is None:
            scale = covering_width(num, 0.0, 1.0)
        widths = listed(scale)
        centres = evenly(num, len(widths), low, high, positions.dtype)
        spread = [w * (high - low) for w in widths for _ in range(num // len(widths))]
        dtype = wide_dtype(positions.dtype)
        return cls(
            positions.new_tensor(centres, dtype=dtype), positions.new_tensor(spread, dtype=dtype), learnable=learnable
        )

    @classmethod
    def of_known(cls, loc: Float[Tensor, " K"], scale: Float[Tensor, " K"]) -> "GaussianBasis":
        """A basis from valid constants of another basis: skips checks of values, which would wait for a GPU."""
        basis = cls.__new__(cls)
        Basis.__init__(basis)
        basis.num_functions, basis.learnable = loc.shape[0], False
        basis.register_buffer("loc", loc)
        basis.register_buffer("fixed_scale", scale)
        return basis

    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K)."""
        scale = self.scale
        offset, area = t.unsqueeze(-1) - self.loc, math.sqrt(2 * math.pi) * scale
        least = least_exponent(offset.dtype)
        if is_eager(offset) and not offset.requires_grad and not scale.requires_grad:
            # Without gradients, work in place: on a CPU, allocating memory takes longer than the exponential.
            return offset.div_(scale).square_().mul_(-0.5).clamp_(min=least).exp_().div_(area)
        return (-0.5 * (offset / scale).square()).clamp(min=least).exp() / area

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        scales = [] if self.loc.is_meta else sorted({round(s, 4) for s in self.scale.detach().tolist()})
        shown = ", ".join(f"{s:g}" for s in scales[:4]) + (", …" if len(scales) > 4 else "")
        return f"num_functions={self.num_functions}, scale={{{shown}}}, learnable={self.learnable}"

"""β-Gaussians in any dimension: all that follows from the radial profile (``_profile``) and ½ ln|Σ|."""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from contmax._eager import wide_dtype
from contmax._typing import Float
from contmax.densities._density import Density
from contmax.densities._profile import Profile, profile_of
from contmax.densities._scale import Scale
from contmax.densities._validation import Number, as_index, broadcast_batch, checks_values, expanded

# The largest α − 1 of a fit: at larger α a density differs from a uniform one by less than 1 % of its width.
_LARGEST_GAP = 100.0


class Elliptical(Density):
    """A density that depends on t only through Δ = (t−μ)ᵀΣ⁻¹(t−μ), with the radial profile (``_profile``) of α."""

    _profile: Profile
    #: Σ in the working dtype; on the line a 1×1 diagonal.
    _sigma: Scale
    #: The α of a family that has only one; None if the constructor takes any.
    _only_alpha: ClassVar[float | None] = None

    def _set_index(self, alpha: Number, validate_args: bool | None) -> None:
        """Check and set α; call it after the other parameters are set, since a tensor α may enlarge the batch."""
        if self._only_alpha is not None and (isinstance(alpha, Tensor) or alpha != self._only_alpha):
            raise ValueError(
                f"alpha is {self._only_alpha:g} for this density; got {alpha}. "
                "Use BetaGaussian or MultivariateBetaGaussian."
            )
        self.alpha = as_index(alpha, self._dim, validate_args)
        if isinstance(self.alpha, Tensor):
            self.expand(broadcast_batch(loc=self.batch_shape, alpha=self.alpha.shape), self)
        else:
            self._rebind()

    def _rebind(self) -> None:
        self._profile = profile_of(self.alpha, self._dim)

    @property
    def _dim(self) -> int:
        return self.event_shape[0] if self.event_shape else 1

    def _half_log_det(self) -> Float[Tensor, "..."]:
        """½ ln|Σ| in the working dtype."""
        return self._sigma.half_log_det()

    @abstractmethod
    def _delta(self, points: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Δ at points in the working dtype."""

    def _log_density(self, points: Tensor) -> Tensor:
        return self._profile.log_density(self._delta_in_units(points), self._half_log_det())

    @abstractmethod
    def _delta_in_units(self, points: Tensor) -> Tensor:
        """Δ/ρ, with ρ of `_profile` (for α = ∞ Δ/R², with R the radius of the support).

        Offsets are divided by √ρ (or R) before they are squared: Δ may overflow where the quotient does not.
        """

    def _score(self, points: Tensor) -> Tensor:
        return -0.5 * self._delta(points)

    def mahalanobis_sq(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Δ(t) = (t−μ)ᵀΣ⁻¹(t−μ); arguments as ``log_prob``."""
        return self._delta(self._points(value)).to(self._result_dtype(value))

    @property
    def mean(self) -> Tensor:
        """μ; also the mode, by convention even where the density is constant (α = ∞)."""
        return self.loc

    mode = mean

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ with p = [(α−1)(f−λ)]₊^{1/(α−1)}; −∞ at α = 1."""
        return self._of_batch(self._profile.threshold(self._half_log_det()))

    @property
    def radius(self) -> Float[Tensor, "*batch"]:
        """R: the support is Δ ≤ R²; +∞ for α ≤ 1."""
        return self._of_batch(self._profile.radius(self._half_log_det()))

    @property
    def normalizer(self) -> Float[Tensor, "*batch"]:
        """A_α of the centred score −Δ/2, so that p = exp_{2−α}(−Δ/2 − A)."""
        return self._of_batch(self._profile.normalizer(self._half_log_det()))

    @property
    def variance_factor(self) -> Float[Tensor, "*batch"]:
        """v with Cov = vΣ; 1 only for α = 1."""
        return self._of_batch(self._profile.variance_factor(self._half_log_det()))

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats."""
        return self._of_batch(self._profile.entropy(self._half_log_det()))

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        """Ω_α(p) for the density's α."""
        return self._of_batch(self._profile.negentropy(self._half_log_det()))

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω_α*(f) of the centred score f = −Δ/2."""
        return self._of_batch(self._profile.conjugate(self._half_log_det()))

    def power_integral(self, gamma: Number) -> Float[Tensor, "..."]:
        r"""∫p(t)^γ dt.

        Args:
            gamma: γ > 0; for α < 1 also γ > (1−α)N/2, or the integral diverges. For numbers α > 1 and γ also
                1 − α < γ ≤ 0: over the support only, so that γ = 0 gives its volume.

        Returns:
            Shape ``(*batch)``.

        Example:
            >>> from contmax.densities import BetaGaussian
            >>> BetaGaussian(0.0, 1.0).power_integral(1.0)
            tensor(1.)
        """
        return self._of_batch(self._profile.log_power_integral(gamma, self._half_log_det()).exp())

    def escort(self, beta: float) -> Any:
        r"""The β-escort :math:`p^\beta / \int p^\beta`: another β-Gaussian, with the same support.

        Args:
            beta: order β > 0. With β = 2 − α (1 < α < 2) it is the density under which gradients of the Ω_α-map
                average, and its index is 1/(2−α).

        Returns:
            The β-Gaussian of index 1 + (α−1)/β.

        Raises:
            ValueError: if ``beta`` is not positive.

        Example:
            >>> from contmax.densities import BetaGaussian
            >>> BetaGaussian(0.0, 1.0, alpha=1.5).escort(0.5).alpha
            2.0
        """
        if not (isinstance(beta, (float, int)) and math.isfinite(beta) and beta > 0):
            raise ValueError(
                f"beta must be a positive number; got {beta}: the escort of order zero is uniform on the support and a "
                "negative order grows towards its edge; neither is a β-Gaussian. Pass beta > 0, e.g. 2 - alpha."
            )
        log_stretch = self._profile.log_escort_stretch(float(beta), self._half_log_det())
        return self._stretched(log_stretch.exp(), 1 + (self.alpha - 1) / float(beta))

    @abstractmethod
    def _stretched(self, factor: Tensor, alpha: Number) -> Any:
        """The β-Gaussian of index α with scale matrix ``factor``²·Σ."""

    def _of_batch(self, value: Tensor, event_dims: int = 0) -> Tensor:
        """The value in the result dtype, expanded to the batch of the density, which may exceed the scale's batch."""
        batch = value.shape[: value.ndim - event_dims]
        shape = torch.broadcast_shapes(batch, self.batch_shape) + value.shape[value.ndim - event_dims :]
        return expanded(self._round(value), shape)

    def _extra_repr(self) -> list[str]:
        return [] if self._only_alpha or isinstance(self.alpha, Tensor) else [f"alpha: {self.alpha:.6g}"]


def adjustable_profile(alpha: Number, dim: int, of: str, validate_args: bool | None) -> Profile:
    """The profile of α for a density with a chosen moment or support (``of``); refuses ∞, and α ≤ 1 for "support"."""
    index = low = as_index(alpha, dim, validate_args)
    if isinstance(index, Tensor):
        low = float(index.detach().min()) if index.numel() and checks_values(validate_args, index) else math.inf
    elif math.isinf(index):
        raise ValueError(
            f"alpha must be finite here; alpha=inf fixes the volume of the support at 1, so {of} cannot be chosen. "
            "Pass a finite alpha."
        )
    if of == "support" and low <= 1:
        raise ValueError(f"alpha must exceed 1; got {low:.6g}, whose support is unbounded. Pass alpha > 1.")
    return Profile(index, dim)


def index_of_moments(samples: Float[Tensor, "n *batch"], weights: Tensor | None) -> Float[Tensor, "*batch"]:
    r"""α of the β-Gaussian on the line with the kurtosis κ of the samples.

    .. math:: \kappa = \frac{3(2k+3)}{2k+5},\ k = \frac1{\alpha-1}
              \quad\Rightarrow\quad \alpha = 1 + \frac{2(3-\kappa)}{5\kappa-9}

    α lies between 0.6 for infinite κ and ∞ for κ = 9/5. For a smaller κ the result is the largest α of a fit, 101.
    """
    wide = samples.to(wide_dtype(samples.dtype))
    share = _shares(weights, wide)
    squares = (wide - (share * wide).sum(0)).square()
    kurtosis = (share * squares.square()).sum(0) / (share * squares).sum(0).square()
    kurtosis = kurtosis.clamp(min=9 / 5 + 2.4 / (5 * _LARGEST_GAP))
    return (1 + 2 * (3 - kurtosis) / (5 * kurtosis - 9)).to(samples.dtype)


def weighted_moments(
    samples: Float[Tensor, "n *batch N"], weights: Tensor | None
) -> tuple[Float[Tensor, "*batch N"], Float[Tensor, "*batch N N"]]:
    """Mean and biased covariance of samples along the first dimension; without weights all count equally."""
    if samples.ndim < 2:
        raise ValueError(f"samples in N dimensions must have shape (n, *batch, N); got {tuple(samples.shape)}.")
    wide = samples.to(wide_dtype(samples.dtype))
    share = _shares(weights, wide[..., 0]).unsqueeze(-1)
    mean = (share * wide).sum(0)
    centred = wide - mean
    covariance = ((share * centred).unsqueeze(-1) * centred.unsqueeze(-2)).sum(0)
    return mean.to(samples.dtype), covariance.to(samples.dtype)


def _shares(weights: Tensor | None, samples: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
    """``weights`` normalised to a sum of one over the samples; equal weights for None."""
    share = torch.ones_like(samples) if weights is None else weights.to(samples.dtype).expand(samples.shape)
    return share / share.sum(0)

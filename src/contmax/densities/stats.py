"""The densities with the interface of scipy.stats: numpy in, numpy out.

A thin wrapper around the classes of :mod:`contmax.densities`, computed in float64.

    >>> from contmax.densities import stats
    >>> stats.truncated_parabola.pdf([-0.5, 0.0, 2.0], loc=0.0, scale=1.0).round(4)
    array([0.5302, 0.6552, 0.    ])
    >>> frozen = stats.beta_gaussian(loc=1.0, scale=0.5, alpha=1.5)
    >>> [float(end.round(4)) for end in frozen.interval(0.9)]
    [0.3865, 1.6135]
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contmax.densities._beta_gaussian import BetaGaussian, TruncatedParabola
from contmax.densities._location_scale import LocationScale, Triangular

Numbers = float | Sequence[Any] | np.ndarray
Array = np.ndarray | np.float64


class Frozen:
    """A density with given parameters, which has the methods of a frozen scipy distribution."""

    def __init__(self, density: Any) -> None:
        self.density = density

    def pdf(self, x: Numbers) -> Array:
        """p(x)."""
        return _array(self.density.density(_tensor(x)))

    def logpdf(self, x: Numbers) -> Array:
        """ln p(x); −inf off the support."""
        return _array(self.density.log_prob(_tensor(x)))

    def cdf(self, x: Numbers) -> Array:
        """P(X ≤ x)."""
        return _array(self.density.cdf(_tensor(x)))

    def sf(self, x: Numbers) -> Array:
        """P(X > x) = 1 − cdf(x), by symmetry about the mean and so without cancellation."""
        return _array(self.density.cdf(2 * self.density.mean - _tensor(x)))

    def ppf(self, q: Numbers) -> Array:
        """The q-quantile, the inverse of the cdf."""
        return _array(self.density.icdf(_tensor(q)))

    def isf(self, q: Numbers) -> Array:
        """The inverse of the survival function."""
        return _array(2 * self.density.mean - self.density.icdf(_tensor(q)))

    def rvs(self, size: int | tuple[int, ...] = (), random_state: int | np.random.Generator | None = None) -> Array:
        """Draws of shape `size` + batch; `random_state` is a seed, a numpy Generator, or None for torch's state."""
        shape = (size,) if isinstance(size, int) else tuple(size)
        if random_state is None:
            return _array(self.density.sample(shape))
        seed = random_state if isinstance(random_state, int) else int(random_state.integers(2**63))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _array(self.density.sample(shape))

    def mean(self) -> Array:
        """E[X]."""
        return _array(self.density.mean)

    def median(self) -> Array:
        """The ½-quantile, which is the mean: all these densities are symmetric."""
        return self.mean()

    def var(self) -> Array:
        """E[(X − E[X])²]."""
        return _array(self.density.variance)

    def std(self) -> Array:
        """The square root of the variance."""
        return _array(self.density.stddev)

    def stats(self, moments: str = "mv") -> tuple[Array, ...]:
        """Mean ("m") and variance ("v"), in the order of ``moments``."""
        known: dict[str, Callable[[], Array]] = {"m": self.mean, "v": self.var}
        if not moments or set(moments) - set(known):
            raise ValueError(f"moments must be made of 'm' and 'v'; got {moments!r}. Pass 'mv'.")
        return tuple(known[moment]() for moment in moments)

    def entropy(self) -> Array:
        """Shannon entropy in nats."""
        return _array(self.density.entropy())

    def support(self) -> tuple[Array, Array]:
        """The two ends of the support; infinite for α ≤ 1."""
        return self.ppf(0.0), self.ppf(1.0)

    def interval(self, confidence: float) -> tuple[Array, Array]:
        """The central interval that holds this probability."""
        return self.ppf((1 - confidence) / 2), self.ppf((1 + confidence) / 2)

    def __repr__(self) -> str:
        return f"Frozen({self.density!r})"


class Family:
    """A family of densities: call it with parameters to get a :class:`Frozen` density, or pass them to any method.

    Args:
        name: name of the family.
        make: function from parameters to a density.
        fitted: function from samples to a dict of the best-fitting parameters; None without a closed form.
    """

    def __init__(self, name: str, make: Callable[..., Any], fitted: Callable[..., dict[str, Any]] | None) -> None:
        self.name, self._make, self._fitted = name, make, fitted

    def __call__(self, loc: Numbers = 0.0, scale: Numbers = 1.0, **options: Any) -> Frozen:
        """The density with these parameters, frozen."""
        return Frozen(self._make(_tensor(loc), _tensor(scale), **options))

    def fit(self, data: Numbers, **options: Any) -> tuple[float, ...]:
        """The parameters (loc, scale) that minimise the Fenchel–Young loss over the data.

        ``beta_gaussian.fit(data, alpha=None)`` finds α too and returns (loc, scale, alpha).
        """
        if self._fitted is None:
            raise NotImplementedError(f"{self.name} has no closed-form fit. Minimise contmax.losses.fenchel_young.")
        return tuple(float(value) for value in self._fitted(_tensor(data), **options).values())

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """A method of the frozen density that also takes the parameters: ``family.pdf(x, loc=0, scale=1)``."""
        if method.startswith("_") or not hasattr(Frozen, method):
            raise AttributeError(f"{type(self).__name__} has no attribute {method!r}")

        def call(*arguments: Any, loc: Numbers = 0.0, scale: Numbers = 1.0, **options: Any) -> Any:
            mine = {name: options.pop(name) for name in ("alpha", "g") if name in options}
            return getattr(self(loc, scale, **mine), method)(*arguments, **options)

        return call

    def __repr__(self) -> str:
        return f"contmax.densities.stats.{self.name}"


def _tensor(values: Numbers) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


def _array(tensor: Tensor) -> Array:
    """The tensor as a numpy array, or as a numpy scalar if 0-d."""
    array: Array = tensor.detach().numpy()[()]
    return array


def _fitted(family: Any, *names: str) -> Callable[..., dict[str, Any]]:
    """A function from samples to parameters (``names``, and α if ``alpha=None``) of the fitted member of ``family``."""

    def fitted(data: Tensor, **options: Any) -> dict[str, Any]:
        density = family.fit(data, **options)
        found = (*names, "alpha") if options.get("alpha", 2.0) is None else names
        return {name: getattr(density, name) for name in found}

    return fitted


beta_gaussian = Family("beta_gaussian", BetaGaussian, _fitted(BetaGaussian, "loc", "scale"))
truncated_parabola = Family("truncated_parabola", TruncatedParabola, _fitted(TruncatedParabola, "loc", "scale"))
triangular = Family("triangular", Triangular, _fitted(Triangular, "loc", "scale"))
location_scale = Family("location_scale", LocationScale, None)

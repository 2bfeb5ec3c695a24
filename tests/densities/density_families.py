"""Every density of the library, once. A new class, or a member with code of its own, is tested by adding a line."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from contmax.densities import (
    BetaGaussian,
    Density,
    LocationScale,
    Mixture,
    MultivariateBetaGaussian,
    Triangular,
    TruncatedParabola,
    TruncatedParaboloid,
)


@dataclass(frozen=True)
class Family:
    """A builder with parameters at which to test it; the density depends on all of them."""

    name: str
    build: Callable[..., Density]
    parameters: dict[str, list]

    def tensors(self, dtype: torch.dtype = torch.float64, requires_grad: bool = False) -> dict[str, Tensor]:
        return {
            name: torch.tensor(value, dtype=dtype).requires_grad_(requires_grad)
            for name, value in self.parameters.items()
        }

    def make(self, dtype: torch.dtype = torch.float64) -> Density:
        return self.build(**self.tensors(dtype))

    def said_by(self, p: Density, points: Tensor, level: Tensor) -> list[Tensor]:
        """All that such a density says: of points, of itself, by draws, and on the line of its quantiles too."""
        values = [p.log_prob(points), p.density(points), p.variance]
        if "mixture" not in self.name:
            values += [p.entropy(), p.tsallis_negentropy(), p.conjugate(), p.threshold]
            values += [p.rsample((4,)) if p.has_rsample else p.sample((4,))]
        return values if p.event_shape else [*values, p.cdf(points), p.icdf(level)]

    def __str__(self) -> str:
        return self.name


_LINE = {"loc": [0.3, -1.2], "scale": [0.7, 1.4]}


def _of_index(name: str, alpha: float) -> Family:
    return Family(name, lambda loc, scale: BetaGaussian(loc, scale, alpha), _LINE)


def _generated(name: str, g: str | Callable) -> Family:
    return Family(name, lambda loc, scale: LocationScale(loc, scale, g), _LINE)


def _mixture(logits: Tensor, loc: Tensor, scale: Tensor) -> Density:
    return Mixture(Categorical(logits=logits, validate_args=False), TruncatedParabola(loc, scale))


def _gaussian_mixture(logits: Tensor, loc: Tensor, scale: Tensor) -> Density:
    return Mixture(Categorical(logits=logits, validate_args=False), BetaGaussian(loc, scale, 1.0))


LINE = [
    _of_index("student", 0.6),
    _of_index("almost-gaussian-below", 0.999),
    _of_index("gaussian", 1.0),
    _of_index("almost-gaussian-above", 1.000001),
    _of_index("triweight", 4 / 3),
    _of_index("biweight", 1.5),
    _of_index("alpha-1.7", 1.7),
    Family("parabola", TruncatedParabola, _LINE),
    _of_index("alpha-2.5", 2.5),
    _of_index("alpha-5", 5.0),
    _of_index("uniform", math.inf),
    Family(
        "tensor-alpha",
        BetaGaussian,
        {"loc": [0.3, -1.2, 0.0, 0.1], "scale": [0.7, 1.4, 1.0, 0.3], "alpha": [0.8, 1.0, 1.4, 3.0]},
    ),
    Family("triangular", Triangular, _LINE),
    *[_generated(f"generated-by-{g}", g) for g in ("cube", "square", "cosh", "quartic", "exp")],
    _generated("generated-by-callable", lambda x: x**3 / 6 + torch.cosh(x)),
    Family("mixture", _mixture, {"logits": [0.2, -0.3], "loc": [0.0, 1.5], "scale": [0.5, 0.2]}),
    Family("mixture-of-gaussians", _gaussian_mixture, {"logits": [0.2, -0.3], "loc": [0.0, 1.5], "scale": [0.5, 0.2]}),
]

_PLANE = {"loc": [[0.3, -0.2], [1.0, 0.5]], "scale_matrix": [[[1.2, 0.3], [0.3, 0.5]], [[0.4, -0.1], [-0.1, 0.9]]]}
_SPACE = {"loc": [0.1, -0.2, 0.3], "scale_tril": [[0.8, 0.0, 0.0], [0.2, 0.5, 0.0], [-0.1, 0.3, 1.1]]}


def _in_plane(name: str, alpha: float) -> Family:
    return Family(name, lambda loc, scale_matrix: MultivariateBetaGaussian(loc, scale_matrix, alpha), _PLANE)


def _cholesky(alpha: float) -> Callable[..., Density]:
    return lambda loc, scale_tril: MultivariateBetaGaussian(loc, scale_tril=scale_tril.tril(), alpha=alpha)


def _mixture_in_plane(logits: Tensor, loc: Tensor, scale_matrix: Tensor) -> Density:
    return Mixture(Categorical(logits=logits, validate_args=False), TruncatedParaboloid(loc, scale_matrix))


SEVERAL = [
    _in_plane("student-2d", 0.7),
    _in_plane("gaussian-2d", 1.0),
    _in_plane("biweight-2d", 1.5),
    _in_plane("alpha-2.5-2d", 2.5),
    _in_plane("uniform-2d", math.inf),
    Family("paraboloid", TruncatedParaboloid, _PLANE),
    Family("tensor-alpha-2d", MultivariateBetaGaussian, {**_PLANE, "alpha": [0.9, 1.6]}),
    Family("student-3d", _cholesky(0.8), _SPACE),
    Family("paraboloid-3d", _cholesky(2.0), _SPACE),
    Family(
        "diagonal-5d",
        lambda loc, scale_diag: MultivariateBetaGaussian(loc, scale_diag=scale_diag, alpha=1.3),
        {"loc": [0.0, 0.1, 0.2, 0.3, 0.4], "scale_diag": [0.5, 0.6, 0.7, 0.8, 0.9]},
    ),
    Family(
        "precision-5d",
        lambda loc, precision_matrix: MultivariateBetaGaussian(loc, precision_matrix=precision_matrix, alpha=2.0),
        {"loc": [0.0] * 5, "precision_matrix": (torch.eye(5) + 0.2).tolist()},
    ),
    Family("mixture-2d", _mixture_in_plane, {"logits": [0.2, -0.3], **_PLANE}),
]

ALL = LINE + SEVERAL


def each(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=str)


def inner_points(p: Density, count: int = 4) -> Tensor:
    """Points inside the support, (count, *batch[, N])."""
    torch.manual_seed(1)
    return p.mean + 0.7 * (p.sample((count,)) - p.mean)

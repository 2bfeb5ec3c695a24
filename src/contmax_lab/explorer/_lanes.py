"""One input attended to in several ways: by the model, and by other attentions with equal moments."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax_lab.attention import Attended
from contmax_lab.contract import Look
from contmax_lab.labelled import cell_centres


@dataclasses.dataclass(frozen=True)
class Lane:
    """One way of attending, and what the model says then.

    Args:
        name: of the attention.
        own: whether the model itself attends so.
        answer: probabilities, or one number.
        weights: of words or cells, (L,); None for densities alone.
        densities: over the line or the plane, one for each head; none for weights alone.
    """

    name: str
    own: bool
    answer: list[float]
    weights: Tensor | None = None
    densities: tuple[Any, ...] = ()


class Examination:
    """An input that the model has read, and that can be attended to elsewhere.

    Another attention takes the place of all that the model has: of every head, and of both parts of a combined one.
    """

    def __init__(self, look: Look) -> None:
        self.words, self.pixels, self.grid, self.classes = look.words, look.pixels, look.grid, look.classes
        self._decide, self._heads = look.decide, len(look.heads)
        # A combined attention adds the contexts of its two parts.
        self._parts = sum(part is not None for part in (look.heads[0].weights, look.heads[0].density))
        basis = look.basis
        if basis is None:
            # A model without continuous attention has no basis of its own.
            basis = GaussianBasis.covering(64) if look.grid is None else MultivariateGaussianBasis.covering(8)
        self._signal = contmax.fit_signal(look.values, basis, grid=look.grid, penalty=look.penalty).materialize()
        self.lanes = self._lanes(look)

    @torch.no_grad()
    def answer_to(self, density: Any) -> list[float]:
        """The answer of the model if this density alone decides where it looks."""
        return self._answer(self._signal.expectation(density))

    def _answer(self, context: Tensor) -> list[float]:
        contexts = (self._parts * context).repeat(self._heads).unsqueeze(0)
        answer: list[float] = self._decide(contexts)[0].tolist()
        return answer

    @torch.no_grad()
    def _lanes(self, look: Look) -> list[Lane]:
        own = look.decide(torch.cat([head.context for head in look.heads], -1))[0].tolist()
        densities = tuple(_only(head.density) for head in look.heads if head.density is not None)
        found = [head.weights[0] for head in look.heads if head.weights is not None]
        weights = torch.stack(found).mean(0) if found else None
        mean, spread = _moments(look)
        kind: Any = BetaGaussian if look.grid is None else MultivariateBetaGaussian
        gaussian, parabola = (kind.from_moments(mean, spread, alpha) for alpha in (1.0, 2.0))
        discrete = weights
        if discrete is None:
            # The mass of the Gaussian on each word or cell, normalised to sum to 1.
            on_line = look.grid is None
            edges = torch.arange(len(look.values) + 1) / len(look.values)
            mass: Tensor = gaussian.cdf(edges).diff() if on_line else gaussian.density(_positions(look))
            discrete = mass / mass.sum().clamp(min=torch.finfo(mass.dtype).tiny)
        alphas = {float(density.alpha) for density in densities}
        alone = self._parts == 1
        return [
            Lane("the model itself", True, own, weights, densities),
            Lane("discrete", alone and weights is not None, self._answer(discrete @ look.values), discrete),
            Lane("continuous softmax", alone and alphas == {1.0}, self.answer_to(gaussian), None, (gaussian,)),
            Lane("continuous sparsemax", alone and alphas == {2.0}, self.answer_to(parabola), None, (parabola,)),
        ]


def interval(low: float, high: float) -> BetaGaussian:
    """Continuous sparsemax over an interval of the text, which is the unit interval."""
    return BetaGaussian.from_support(low, high, alpha=2.0)


def ellipse(centre: tuple[float, float], axes: tuple[float, float], angle: float) -> MultivariateBetaGaussian:
    """Continuous sparsemax over an ellipse of the image, which is the unit square.

    Args:
        centre: row and column.
        axes: half-axes.
        angle: from the rows downwards to the first axis, radians.
    """
    turn = torch.tensor(angle)
    axis = torch.stack([turn.cos(), turn.sin()])
    across = torch.stack([-axis[1], axis[0]])
    support = axes[0] ** 2 * torch.outer(axis, axis) + axes[1] ** 2 * torch.outer(across, across)
    return MultivariateBetaGaussian.from_support(torch.tensor(centre), support, alpha=2.0)


def _positions(look: Look) -> Tensor:
    """Middles of the words, (L,), or of the cells, (L, 2)."""
    return cell_centres(look.grid or (len(look.values),), look.values)


def _moments(look: Look) -> tuple[Tensor, Tensor]:
    """Mean and covariance of where the heads look, on average."""
    found = [_moments_of(head, look) for head in look.heads]
    means, spreads = (torch.stack(parts) for parts in zip(*found, strict=True))
    mean = means.mean(0)
    offsets = means - mean
    between = offsets.square() if offsets.dim() == 1 else offsets.unsqueeze(-1) * offsets.unsqueeze(-2)
    return mean, (spreads + between).mean(0)


def _moments_of(head: Attended, look: Look) -> tuple[Tensor, Tensor]:
    # Moments cannot be matched where the variance is infinite.
    if head.density is not None:
        density: Any = _only(head.density)
        spread = density.variance if look.grid is None else density.covariance_matrix
        if bool(spread.isfinite().all()):
            return density.mean, spread
    if head.weights is None:
        raise ValueError("an attention without a finite variance cannot be compared with others")
    mean, spread = contmax.maps.moments(head.weights[0], _positions(look), grid=look.grid)
    return mean, spread


def _only(density: Any) -> Any:
    """The only member of a batch of one density, with α as a number."""
    alpha = float(density.alpha) if isinstance(density.alpha, float) else float(density.alpha.flatten()[0])
    if isinstance(density, BetaGaussian):
        return BetaGaussian(density.loc[0], density.scale[0], alpha)
    return MultivariateBetaGaussian(density.loc[0], scale_tril=density.scale_tril[0], alpha=alpha)

"""The Ω_α-map on a weighted set of points: the finite map, seen as a distribution over the points."""

from typing import ClassVar

import torch
from torch import Size, Tensor
from torch.types import _size

from contmax._typing import Bool, Float
from contmax.deformed import log_beta
from contmax.domains import Nodes
from contmax.maps._entmax import entmax_map
from contmax.prediction._prediction import Prediction
from contmax.prediction._quantile import bucket
from contmax.prediction._regularized_prediction import register_prediction
from contmax.prediction._score import Score, broadcast_alpha, checked_alpha, read_score


@register_prediction(Nodes)
def predict_on_nodes(score: Score, domain: Nodes, alpha: float | int | Tensor) -> "NodesPrediction":
    """The prediction; see :func:`contmax.regularized_prediction`."""
    index = checked_alpha(alpha, domain.points.device)
    values, dtype = read_score(score, domain.points, domain)
    values = broadcast_alpha(values, index)
    weights = domain.weights.double()
    density = entmax_map(values, index[..., None] if isinstance(alpha, Tensor) else float(alpha), -1, weights)
    best = density.detach().argmax(-1, keepdim=True)
    height, top = density.gather(-1, best)[..., 0], values.gather(-1, best)[..., 0]
    some = height > 0
    normalizer = torch.where(
        some, torch.where(some, top, 0) - log_beta(torch.where(some, height, 1), 2 - index), -torch.inf
    )
    return NodesPrediction(alpha, index, domain, values, normalizer, density, dtype)


class NodesPrediction(Prediction):
    r"""A prediction on a weighted set of points, see :class:`Prediction`.

    ``density`` is relative to the weights, :math:`\sum_i w_i p_i = 1`, and 0 between the points; ``probabilities``
    are :math:`w_i p_i`. Entropies are relative to the weights too.
    """

    has_rsample = False
    _batched: ClassVar = {**Prediction._batched, "_scores": 1}

    def __init__(
        self,
        alpha: float | int | Tensor,
        index: Tensor,
        domain: Nodes,
        scores: Float[Tensor, "*batch n"],
        normalizer: Float[Tensor, "*batch"],
        density: Float[Tensor, "*batch n"],
        dtype: torch.dtype,
    ) -> None:
        sparse = (index != 1) & (normalizer > -torch.inf)
        threshold = torch.where(sparse, normalizer - 1 / torch.where(sparse, index - 1, 1), -torch.inf)
        super().__init__(alpha, normalizer, threshold, domain.points.shape[1:], dtype)
        self._places, self._scores = domain.points.double(), scores
        self._set_rule(
            self._places.expand(*density.shape, *self.event_shape), domain.weights.double() * density, density
        )

    @property
    def probabilities(self) -> Float[Tensor, "*batch n"]:
        """w p, the mass of each point."""
        return self._round(self._masses)

    def _is_at(self, points: Tensor) -> Bool[Tensor, "... n"]:
        """Which of the places each point is."""
        same = points.unsqueeze(points.dim() - len(self.event_shape)) == self._places
        return same.all(-1) if self.event_shape else same

    def _score(self, points: Tensor) -> Tensor:
        return self._nan_at_nan(points, torch.where(self._is_at(points), self._scores, -torch.inf).amax(-1))

    def _log_density(self, points: Tensor) -> Tensor:
        same = self._is_at(points)
        count = same.sum(-1)
        height = (same * self._heights).sum(-1) / count.clamp(min=1)
        inside = height > 0
        return torch.where(inside, torch.where(inside, height, 1).log(), -torch.inf)

    @property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """Points in order, and masses in that order."""
        if self.event_shape:
            raise NotImplementedError("cdf and icdf need points on a line; these have several coordinates.")
        order = self._places.argsort()
        return self._places[order], self._masses[..., order]

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t), a step function; arguments as ``log_prob``."""
        places, masses = self._sorted
        points = self._points(value)
        reached = (masses * (places <= points[..., None])).sum(-1)
        return self._nan_at_nan(points, reached).to(self._result_dtype(value))

    def icdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """The first point at which the cdf reaches a probability in [0, 1], NaN elsewhere."""
        places, masses = self._sorted
        level = self._points(value)
        level = level.expand(torch.broadcast_shapes(level.shape, self.batch_shape))
        # A sum of masses that falls short of the level by rounding has reached it.
        slack = torch.finfo(self._result_dtype(value)).eps + 64 * torch.finfo(level.dtype).eps
        found = self._nonempty(places[bucket(masses, level * (1 - slack))])
        return torch.where((level >= 0) & (level <= 1), found, torch.nan).to(self._result_dtype(value))

    @torch.no_grad()
    def sample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Points drawn with their probabilities; shape ``sample_shape + batch_shape + event_shape``."""
        shape = Size(sample_shape) + self.batch_shape
        level = torch.rand(shape, dtype=torch.float64, device=self._masses.device)
        return self._round(self._nonempty(self._places[bucket(self._masses, level)]))

    def _nonempty(self, points: Tensor) -> Tensor:
        """The points, NaN where there is no mass to choose them."""
        some = self._masses.detach().sum(-1) > 0
        return torch.where(some.reshape(some.shape + (1,) * len(self.event_shape)), points, torch.nan)

    @property
    def mode(self) -> Tensor:
        """The point of highest density; the first of several."""
        return self._round(self._places[self._heights.argmax(-1)])

    @property
    def live_cells(self) -> Bool[Tensor, "*batch n"]:
        """Which points have mass."""
        return self._heights > 0

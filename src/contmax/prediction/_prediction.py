"""Base classes of predictions: densities given by a normaliser and by masses at the nodes of a quadrature rule."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Size, Tensor
from torch.distributions import constraints
from torch.types import _size

from contmax._eager import is_eager_cpu
from contmax._typing import Bool, Float
from contmax.deformed import log1p_over, log_beta
from contmax.densities import Density, Landmarks
from contmax.densities._density import Condition
from contmax.densities._mixture import WeightedSum
from contmax.densities._region import Intervals
from contmax.prediction._live_parts import take
from contmax.prediction._normalizer import UnitMeasure


class Prediction(WeightedSum):
    r"""The Ω_α-map of a score: :math:`p(t) = \exp_{2-\alpha}(f(t) - A) = [(\alpha-1)(f(t)-\lambda)]_+^{1/(\alpha-1)}`.

    Made by :func:`contmax.regularized_prediction`. Computed in float64; results have the dtype of the score.

    Attributes:
        alpha: α, as given; a tensor is expanded to the batch.
    """

    _batched: ClassVar[dict[str, int]] = {
        **dict.fromkeys(("_index", "_unit_normalizer", "_normalizer", "_threshold"), 0),
        **dict.fromkeys(("_nodes", "_masses", "_heights"), 1),
    }

    alpha: float | Tensor

    def __init__(
        self,
        alpha: float | int | Tensor,
        form: UnitMeasure,
        partition: Float[Tensor, "*batch"],
        event_shape: Size,
        dtype: torch.dtype,
    ) -> None:
        """`form` rescales the domain to measure one; `partition` is Ã, the normaliser on the rescaled domain."""
        super().__init__(partition.shape, event_shape)
        self.alpha = alpha.expand(partition.shape) if isinstance(alpha, Tensor) else float(alpha)
        self._index, self._form, self._unit_normalizer = form.alpha.expand(partition.shape), form, partition
        self._normalizer, self._threshold, self._dtype = form.normalizer(partition), form.threshold(partition), dtype

    def _set_rule(self, nodes: Tensor, masses: Tensor, heights: Tensor) -> None:
        """Store the quadrature rule: nodes t (*batch, n[, N]), masses (*batch, n) with sum one, and densities p(t)."""
        self._nodes, self._masses, self._heights = nodes, masses, heights

    @property
    def normalizer(self) -> Float[Tensor, "*batch"]:
        """A, with p = exp_{2−α}(f − A)."""
        return self._round(self._normalizer)

    @property
    def threshold(self) -> Float[Tensor, "*batch"]:
        """λ = A − 1/(α−1): for α > 1 the support is where f > λ; −∞ at α = 1."""
        return self._round(self._threshold)

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Float[Tensor, "..."]:
        r""":math:`E_p[\psi] = \int p(t)\,\psi(t)\,dt`, differentiable in the score, in α and in ψ.

        Args:
            function: ψ, smooth where p > 0 if its expectation is to be differentiated (nodes move with the support).
                It maps points (\*batch, n), or (\*batch, n, N) in N dimensions, to (\*batch, n) or (\*batch, n, K).

        Returns:
            (\*batch) or (\*batch, K).

        Raises:
            ValueError: if the function does not return one value or vector per point.

        Example:
            >>> import contmax
            >>> p = contmax.regularized_prediction(lambda t: -(t**2), contmax.domains.Interval(-3.0, 3.0))
            >>> p.expectation(torch.cos)
            tensor(0.9198)
        """
        values = function(self._nodes.to(self._dtype))
        shape = self._masses.shape
        if tuple(values.shape[: len(shape)]) != tuple(shape):
            raise ValueError(
                f"the function must return one value, or one vector, per point: shape {tuple(shape)} or "
                f"{(*shape, 'K')}; got {tuple(values.shape)}."
            )
        return self._moment(values).to(torch.promote_types(self._dtype, values.dtype))

    def _moment(self, values: Tensor) -> Tensor:
        """Σ mass·values over the nodes; values (*batch, n, *rest)."""
        return self._average(values, values.dim() - self._masses.dim())

    def _weights(self) -> Tensor:
        return self._masses

    def _moment_of_parts(self, name: str) -> Tensor | float:
        return self._nodes if name == "mean" else 0.0

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Shannon entropy in nats."""
        return self._round(-self._moment(torch.where(self._heights > 0, self._heights, 1).log()))

    def tsallis_negentropy(self) -> Float[Tensor, "*batch"]:
        r"""Ω_α(p) = E_p[log_{2−α} p]/α, of the prediction's own α."""
        return self._round(self._negentropy())

    def _negentropy(self) -> Tensor:
        inside = self._heights > 0
        alpha = self._index
        return self._moment(log_beta(torch.where(inside, self._heights, 1), 2 - alpha[..., None])) / alpha

    def conjugate(self) -> Float[Tensor, "*batch"]:
        """Ω*_α(f) = E_p[f] − Ω_α(p) = (α−1)Ω_α(p) + A; its derivative in the score is the density."""
        return self._round((self._index - 1) * self._negentropy() + self._normalizer)

    @constraints.dependent_property(is_discrete=False)
    def support(self) -> constraints.Constraint:
        """Where the density is positive."""
        return Positive(self)

    def _points(self, value: Tensor) -> Tensor:
        return super()._points(value).double()

    def _log_density_at(self, points: Tensor) -> Tensor:
        return self._nan_at_nan(points, super()._log_density_at(points))

    def _nan_at_nan(self, points: Tensor, values: Tensor) -> Tensor:
        """`values`, replaced by NaN at points that are NaN."""
        unknown = points.isnan()
        return torch.where(unknown.any(-1) if self.event_shape else unknown, torch.nan, values)

    def _round(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype)

    loc = normalizer
    """A tensor that carries dtype and device of the prediction."""

    def __repr__(self) -> str:
        alpha = f"{self.alpha:g}" if isinstance(self.alpha, float) else f"tensor of shape {tuple(self.alpha.shape)}"
        return f"{type(self).__name__}(alpha: {alpha}, batch_shape: {tuple(self.batch_shape)})"


class ContinuousPrediction(Prediction):
    """A prediction on a continuous domain. Its density and score follow from f̃ − Ã, the rescaled score minus its
    normaliser (see `_normalizer`).
    """

    @abstractmethod
    def _excess(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """f̃ − Ã at points, and whether each point lies in the domain and has a score above −inf."""

    def _log_density(self, points: Tensor) -> Tensor:
        excess, inside = self._excess(points)
        value = log_exp(torch.where(inside, excess, 0), self._index) - self._form.log_volume
        return torch.where(inside, value, -torch.inf)

    def _score(self, points: Tensor) -> Tensor:
        excess, inside = self._excess(points)
        scaled = torch.where(inside, excess, 0) + self._unit_normalizer
        score = self._form.top + scaled / self._form.factor
        return self._nan_at_nan(points, torch.where(inside, score, -torch.inf))


class LinePrediction(ContinuousPrediction):
    """A prediction on the line, divided into pieces: intervals on which density and score are smooth."""

    has_rsample = True
    sample = Density.sample  # draws by the inverse cdf; WeightedSum would draw nodes
    _sliver: Tensor | float = 0.0
    """Length to which a jump of the score is located: shorter gaps and intervals of the support are artefacts."""

    @abstractmethod
    def _pieces(self) -> tuple[Float[Tensor, "*batch P"], Float[Tensor, "*batch P"]]:
        """Starts and stops of the pieces on which the density is positive, left to right."""

    @abstractmethod
    def _live(self) -> Bool[Tensor, "*batch P"]:
        """Whether each piece has mass."""

    @abstractmethod
    def _bends(self) -> Float[Tensor, "m"]:
        """Points between which the score is smooth, including the ends of the domain."""

    @property
    def pieces(self) -> Float[Tensor, "*batch P 2"]:
        """Intervals, left to right, inside of which the density is positive and smooth; some have no length."""
        return self._round(torch.stack(self._pieces(), -1))

    @property
    def live_cells(self) -> Float[Tensor, "*batch M 2"]:
        """The disjoint intervals of the support, left to right; shorter lists of a batch are padded with NaN."""
        return self._round(without_slivers(joined(*self._pieces(), self._live()), self._sliver))

    def rsample(self, sample_shape: _size = Size()) -> Tensor:  # noqa: B008
        """Draws by the inverse cdf, with gradients to the score and α; shape ``sample_shape + batch_shape``."""
        shape = self._extended_shape(Size(sample_shape))
        return self._round(self._icdf(torch.rand(shape, dtype=torch.float64, device=self._unit_normalizer.device)))

    def cdf(self, value: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """P(T ≤ t), to the accuracy of the prediction; arguments as ``log_prob``."""
        points = self._points(value)
        return self._nan_at_nan(points, self._cdf(points)).to(self._result_dtype(value))

    def _points(self, value: Tensor) -> Tensor:
        """The points in float64, expanded over the batch."""
        points = super()._points(value)
        return points.expand(torch.broadcast_shapes(points.shape, self.batch_shape))

    def _take(self, field: Tensor, index: Tensor) -> Tensor:
        """Entry `index` (*sample, *batch) of each member's field (*batch, C, *rest)."""
        return take(field, index, self.batch_shape)

    def _region(self) -> Intervals:
        return Intervals(*self._pieces())

    def landmarks(self) -> Landmarks:
        """Ends of the support and of the pieces, and bends of the score."""
        start, stop = (ends.movedim(-1, 0) for ends in self._pieces())
        low, high = start.amin(0), stop.amax(0)
        if is_eager_cpu(start):
            live = (stop > start).reshape(len(start), -1).any(1)
            start, stop = (start[live], stop[live]) if bool(live.any()) else (start[:1], stop[:1])
            # Most pieces start where the previous piece stops: drop the repeated points.
            fresh = (start[1:] != stop[:-1]).reshape(len(start) - 1, -1).any(1)
            start = torch.cat([start[:1], start[1:][fresh]])
            low, high = start.amin(0), stop.amax(0)
        bends = self._bends()
        bends = bends.reshape(-1, *(1 for _ in self.batch_shape)).expand(-1, *self.batch_shape)
        centre, width = self._mean(), 0.5 * (high - low).detach()
        return Landmarks(low, high, centre, width, bends, torch.cat([start, stop]), bounded=True)


class Positive(Condition):
    """The set where the density of a prediction is positive; ``cells`` lists its intervals, cells or points."""

    def __init__(self, prediction: Any) -> None:
        super().__init__("positive", lambda value: prediction.log_prob(value) > -torch.inf, len(prediction.event_shape))
        self._prediction = prediction

    @property
    def cells(self) -> Tensor:
        """``live_cells`` of the prediction."""
        cells: Tensor = self._prediction.live_cells
        return cells


def log_exp(u: Float[Tensor, "..."], alpha: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """ln exp_{2−α}(u), even where exp_{2−α}(u) underflows; −inf with zero gradient outside the support."""
    gap = (alpha - 1) * u
    inside = gap > -1
    safe = torch.where(inside, u, 0)
    return torch.where(inside, safe * log1p_over((alpha - 1) * safe), -torch.inf)


def joined(
    start: Float[Tensor, "*rows P"],
    stop: Float[Tensor, "*rows P"],
    live: Bool[Tensor, "*rows P"],
    gap: Tensor | float = 0,
) -> Float[Tensor, "*rows M 2"]:
    """Unions of consecutive live pieces whose distance is at most `gap`; rows are padded with NaN to equal length."""
    touches = (start[..., 1:] <= stop[..., :-1] + gap) & live[..., :-1] & live[..., 1:]
    opens = live & ~torch.nn.functional.pad(touches, (1, 0))
    closes = live & ~torch.nn.functional.pad(touches, (0, 1))
    count = int(opens.sum(-1).max())
    # Sorting moves NaN behind the numbers, which are in order already.
    ends = [
        torch.where(flag, end, torch.nan).sort(-1).values[..., :count] for flag, end in ((opens, start), (closes, stop))
    ]
    return torch.stack(ends, -1)


def without_slivers(cells: Float[Tensor, "*rows M 2"], size: Tensor | float) -> Float[Tensor, "*rows m 2"]:
    """Remove intervals and gaps up to `size`, which polynomials make beside a jump; keep the longest interval."""
    if cells.shape[-2] < 2:
        return cells
    length = (cells[..., 1] - cells[..., 0]).detach().nan_to_num(-1)
    long = (length > size) | ((length == length.amax(-1, keepdim=True)) & (length >= 0))
    cells = joined(cells[..., 0], cells[..., 1], long)
    return joined(cells[..., 0], cells[..., 1], ~cells[..., 0].isnan(), size)

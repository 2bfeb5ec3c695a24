"""From many cells of an image to one vector: the attentions that are compared."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import contmax
from contmax_lab.attention import Attended

Kind = Literal["discrete", "continuous", "windows", "mixture", "combined"]


class Scores(nn.Module):
    """A score for each value: a layer, a rectifier, dropout, a layer.

    Args:
        embed_dim: channels of the values.
        hidden_dim: of the layer.
        dropout: its rate.
        count: scores for each value.
    """

    def __init__(self, embed_dim: int, hidden_dim: int, dropout: float, count: int = 1) -> None:
        super().__init__()
        self.hidden, self.score = nn.Linear(embed_dim, hidden_dim), nn.Linear(hidden_dim, count)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values: Tensor) -> Tensor:
        """(B, count, L) of values (B, L, D)."""
        scores: Tensor = self.score(self.dropout(torch.relu(self.hidden(values))))
        return scores.mT


class FlatAttention(nn.Module):
    """Weights of the values by scores of their own, and the weighted mean; the questions are in the values already.

    Args:
        scores: of the values, one for each.
        alpha: 1 = softmax, 2 = sparsemax.
    """

    def __init__(self, scores: Scores, alpha: float) -> None:
        super().__init__()
        self.scores, self.alpha = scores, alpha

    def forward(self, values: Tensor, query: None = None, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Context (B, D) and weights (B, L)."""
        weights = contmax.entmax(self.scores(values).squeeze(1), self.alpha, mask=mask)
        return (weights.unsqueeze(1) @ values).squeeze(1), weights


class MixtureHead(nn.Module):
    r"""Several regions: a softmax over cells and components at once, and a density for each component.

    .. math:: p_{j\ell} \propto e^{z_{j\ell}}, \qquad w_j = \sum_\ell p_{j\ell}, \qquad
              p = \sum_j w_j\, p_j, \quad p_j \text{ with the moments of } p_{j\cdot} / w_j

    Args:
        scores: as many for each value as there are components.
    """

    def __init__(self, scores: Scores) -> None:
        super().__init__()
        self.scores = scores

    def forward(
        self,
        values: Tensor,
        *,
        alpha: float | Tensor,
        query: Tensor | None = None,
        positions: Tensor | None = None,
        grid: tuple[int, int] | None = None,
        mask: Tensor | None = None,
    ) -> contmax.densities.Mixture:
        """The mixture, of batch shape (B,)."""
        scores = self.scores(values).float()
        if mask is not None:
            scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
        if positions is None:
            assert grid is not None
            positions = cell_centres(grid, values)
        places = positions if positions.dim() == 2 else positions.unsqueeze(1).expand(-1, scores.shape[1], -1, -1)
        weights = scores.softmax(-1)
        spread = None if mask is None else mask.unsqueeze(1).expand_as(scores)
        mean, covariance = contmax.maps.moments(weights, places, grid=grid, mask=spread)
        components = contmax.densities.MultivariateBetaGaussian.from_moments(mean, covariance, alpha)
        shares = Categorical(logits=scores.logsumexp(-1), validate_args=False)
        return contmax.densities.Mixture(shares, components)


class Reduction(nn.Module):
    """An attention over the cells or regions of an image.

    Args:
        kind: discrete = over cells; continuous = over an ellipse, whose centre and shape are the moments of a discrete
            attention; windows = over such an ellipse in each window of the image; mixture = over several
            ellipses with scores of their own; combined = a discrete and a continuous one, added.
        embed_dim: channels of the values.
        hidden_dim: of the scores.
        dropout: in the scores.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated paraboloid.
        basis: ψ on the unit square.
        weights_alpha: of the discrete attention whose moments continuous and windows take.
        windows: along each side of the image.
        components: of a mixture.
        penalty: λ of the ridge fit.
        grid: (H, W) of the cells; None for regions, whose positions come with each call.

    Example:
        >>> basis = contmax.basis.MultivariateGaussianBasis.grid(10, scale=0.001**0.5)
        >>> reduce = Reduction("continuous", 8, 8, 0.1, alpha=2.0, basis=basis, grid=(14, 14))
        >>> attended = reduce(torch.randn(2, 196, 8))
        >>> attended.context.shape, attended.density.batch_shape
        (torch.Size([2, 8]), torch.Size([2]))
    """

    def __init__(
        self,
        kind: Kind,
        embed_dim: int,
        hidden_dim: int,
        dropout: float,
        *,
        alpha: float,
        basis: contmax.basis.MultivariateGaussianBasis,
        weights_alpha: float = 1.0,
        windows: int = 4,
        components: int = 3,
        penalty: float = 0.01,
        grid: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.grid = kind, grid
        scores = Scores(embed_dim, hidden_dim, dropout, components if kind == "mixture" else 1)
        if kind == "discrete":
            self.attend: nn.Module = FlatAttention(scores, alpha)
        elif kind == "combined":
            self.attend = contmax.nn.CombinedAttention(
                FlatAttention(scores, alpha), basis, alpha=alpha, grid=grid, penalty=penalty
            )
        else:
            cells = FlatAttention(scores, weights_alpha)
            head: nn.Module = MixtureHead(scores)
            if kind == "continuous":
                head = contmax.nn.MomentHead(cells, dim=2)
            elif kind == "windows":
                head = contmax.nn.WindowHead(cells, windows=windows, dim=2)
            self.attend = contmax.nn.ContinuousAttention(basis, alpha=alpha, head=head, grid=grid, penalty=penalty)

    def forward(self, values: Tensor, *, positions: Tensor | None = None, mask: Tensor | None = None) -> Attended:
        """Attend to values (B, L, D); `positions` (B, L, 2) and `mask` (B, L) of regions."""
        if self.kind == "discrete":
            context, weights = self.attend(values, mask=mask)
            return Attended(context, weights)
        context, found = self.attend(values, positions=positions, mask=mask)
        if self.kind == "combined":
            return Attended(context, *found)
        return Attended(context, density=found)


def cell_centres(grid: tuple[int, int], like: Tensor) -> Tensor:
    """Of the cells of the unit square, row by row, (HW, 2)."""
    lines = [(torch.arange(count, device=like.device) + 0.5) / count for count in grid]
    return torch.cartesian_prod(*lines)

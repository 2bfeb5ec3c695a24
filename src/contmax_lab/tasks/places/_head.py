"""Where to look from gates: a stand-in until the library has its own."""

import torch
from torch import Tensor, nn

from contmax.densities import BetaGaussian, MultivariateBetaGaussian


class GateHead(nn.Module):
    r"""Each position is relevant or not, and the density covers the relevant ones.

    .. math:: g_\ell = \mathrm{sigmoid}(v^\top\tanh(W h_\ell + U q) + b), \quad p = g / \textstyle\sum g, \quad
              \mu = E_p[t]

    On the line the half-width is 2·E_p|t − μ|, on the plane the support matrix 3·Cov_p[t], each exact for a box.

    Args:
        embed_dim: channels of the keys.
        dim: 1 or 2.
        query_dim: channels of queries; None for a head without.
        least_half_width: semi-axis of the smallest support.
    """

    def __init__(
        self, embed_dim: int, *, dim: int = 1, query_dim: int | None = None, least_half_width: float = 0.0
    ) -> None:
        super().__init__()
        self.dim, self.least_half_width = dim, least_half_width
        self.key = nn.Linear(embed_dim, embed_dim)
        self.query = None if query_dim is None else nn.Linear(query_dim, embed_dim, bias=False)
        self.energy = nn.Linear(embed_dim, 1)
        # Nearly shut, gates compete as the weights of a softmax do; open ones saturate.
        nn.init.constant_(self.energy.bias, -2.0)

    def forward(
        self, keys: Tensor, *, alpha: float | Tensor, drop: Tensor, query: Tensor | None, where: Tensor, mask: Tensor
    ) -> tuple[BetaGaussian | MultivariateBetaGaussian, Tensor]:
        """Density and weights; `where` (B, L, N) are the positions, `drop` the share of gates shut in training."""
        hidden = self.key(keys)
        if query is not None and self.query is not None:
            hidden = hidden + self.query(query).unsqueeze(1)
        gates = torch.sigmoid(self.energy(torch.tanh(hidden)).squeeze(-1)) * mask
        if self.training:
            kept = gates * (torch.rand_like(gates) >= drop)
            gates = torch.where(kept.sum(-1, keepdim=True) > 0, kept, gates)
        weights = gates / gates.sum(-1, keepdim=True).clamp(min=1e-6)
        loc = (weights.unsqueeze(1) @ where).squeeze(1)
        away = where - loc.unsqueeze(1)
        least = (0.5 / mask.sum(-1) ** (1 / self.dim)) ** 2 + self.least_half_width**2
        if self.dim == 1:
            spread = 2 * (weights * away.squeeze(-1).abs()).sum(-1)
            variance = (spread.square() + least) / 5
            return BetaGaussian.from_moments(loc.squeeze(-1), variance, alpha, validate_args=False), weights
        covariance = torch.einsum("bl,bli,blj->bij", weights, away, away)
        support = 3 * covariance + torch.eye(self.dim) * least[:, None, None]
        return MultivariateBetaGaussian.from_moments(loc, support / 6, alpha, validate_args=False), weights

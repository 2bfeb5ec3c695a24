"""Attention over the pieces of a source sentence, asked again for every piece of its translation."""

import dataclasses

import torch
from torch import Tensor, nn

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax_lab.settings import AttentionKind


@dataclasses.dataclass(frozen=True)
class Memory:
    """What is known of source sentences before the first question; made once for each.

    Args:
        values: states of the pieces, (B, L, D); 0 where there is none.
        keys: the same as the scores see them, (B, L, H).
        mask: which places hold a piece, (B, L).
        times: middles of the pieces in the unit interval, (B, L).
        least: variance of a density over one piece, 1/(12 n²) of n pieces, (B, 1).
        fit: what each piece adds to the signal: its coefficients are fit · values, (B, K, L). Without a continuous
            attention None.
    """

    values: Tensor
    keys: Tensor
    mask: Tensor
    times: Tensor
    least: Tensor
    fit: Tensor | None


@dataclasses.dataclass(frozen=True)
class Look:
    """Where an attention looked.

    Args:
        weights: of the pieces, (B, Q, L).
        mean, variance: of the density over the sentence as the unit interval, (B, Q); None without one.
    """

    weights: Tensor
    mean: Tensor | None = None
    variance: Tensor | None = None

    def density(self, alpha: float) -> BetaGaussian | None:
        """The density, of batch shape (B, Q)."""
        if self.mean is None or self.variance is None:
            return None
        return BetaGaussian.from_moments(self.mean, self.variance, alpha, validate_args=False)


def joined(looks: list[Look]) -> Look:
    """Where an attention looked in one step after the other."""
    weights = torch.cat([look.weights for look in looks], 1)
    means, variances = ([part for look in looks if (part := getattr(look, name)) is not None] for name in _MOMENTS)
    return Look(weights, torch.cat(means, 1), torch.cat(variances, 1)) if means else Look(weights)


_MOMENTS = ("mean", "variance")


class SourceAttention(nn.Module):
    r"""Scores of Bahdanau et al., α-entmax over the pieces, and a density with the moments of these weights.

    .. math:: p = \alpha\text{-entmax}(v^\top\tanh(W h_\ell + U q)), \qquad
              c_{\text{discrete}} = \sum_\ell p_\ell h_\ell, \qquad c_{\text{continuous}} = E_{\hat p}[V(t)],

    where :math:`\hat p` is the α-Gaussian with the mean and the variance of p over the sentence as the unit interval,
    and V the ridge fit of the states. A fit is linear in the states: V(t) = Σ_ℓ (Gψ(t))_ℓ h_ℓ, with G the same for all
    questions and for all sentences of one length. So E[V] = Σ_ℓ w_ℓ h_ℓ with w = G E[ψ], and the two attentions take
    one sum over the states, with the weights p + w.

    Args:
        kind: discrete, continuous, or the sum of both contexts.
        alpha: α: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola.
        embed_dim: D, of the states.
        query_dim: of the questions.
        hidden_dim: H, of the scores.
        basis: ψ.
        penalty: λ of the fit.

    Shape:
        query (B, Q, query_dim); context (B, Q, D).

    Example:
        >>> attend = SourceAttention("combined", 2.0, 8, 6, 5, GaussianBasis.linspace(30, (0.03, 0.1, 0.3)))
        >>> memory = attend.memory(torch.randn(2, 7, 8), torch.ones(2, 7, dtype=torch.bool))
        >>> context, look = attend(torch.randn(2, 1, 6), memory)
        >>> context.shape, look.weights.shape, look.mean.shape
        (torch.Size([2, 1, 8]), torch.Size([2, 1, 7]), torch.Size([2, 1]))
    """

    def __init__(
        self,
        kind: AttentionKind,
        alpha: float,
        embed_dim: int,
        query_dim: int,
        hidden_dim: int,
        basis: GaussianBasis,
        penalty: float = 0.01,
    ) -> None:
        super().__init__()
        self.kind, self.alpha, self.penalty, self.basis = kind, float(alpha), float(penalty), basis
        self.key = nn.Linear(embed_dim, hidden_dim)
        self.query = nn.Linear(query_dim, hidden_dim, bias=False)
        self.energy = nn.Linear(hidden_dim, 1, bias=False)

    def memory(self, values: Tensor, mask: Tensor) -> Memory:
        """What is needed of sentences for all questions.

        Args:
            values: states, (B, L, D).
            mask: which places hold a piece, (B, L).
        """
        values = values * mask.unsqueeze(-1)
        count = mask.sum(-1, keepdim=True).clamp(min=1).to(values.dtype)
        times = (mask.cumsum(-1) - 0.5) / count
        fit = None
        if self.kind != "discrete":
            one_each = torch.eye(mask.shape[-1], dtype=values.dtype, device=values.device).expand(len(mask), -1, -1)
            fit = contmax.fit_signal(one_each, self.basis, mask=mask, penalty=self.penalty).coefficients
        return Memory(values, self.key(values), mask, times, 1 / (12 * count * count), fit)

    def forward(self, query: Tensor, memory: Memory) -> tuple[Tensor, Look]:
        """Context, and where it came from."""
        hidden = torch.tanh(memory.keys.unsqueeze(1) + self.query(query).unsqueeze(2))
        scores = hidden @ self.energy.weight[0]
        weights = contmax.entmax(scores, self.alpha, mask=memory.mask.unsqueeze(1))
        if memory.fit is None:
            return weights @ memory.values, Look(weights)
        times = memory.times.unsqueeze(1)
        mean = (weights * times).sum(-1)
        offset = times - mean.unsqueeze(-1)
        variance = (weights * offset * offset).sum(-1) + memory.least
        density = BetaGaussian.from_moments(mean, variance, self.alpha, validate_args=False)
        mixed = contmax.expectation(density, self.basis) @ memory.fit
        if self.kind == "combined":
            mixed = mixed + weights
        return mixed @ memory.values, Look(weights, mean, variance)

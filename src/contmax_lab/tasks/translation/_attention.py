"""Attention over the pieces of a source sentence, asked again for every piece of its translation."""

import dataclasses

import torch
from torch import Tensor, nn

import contmax
from contmax.basis import GaussianBasis
from contmax.densities import BetaGaussian
from contmax_lab.labelled import middles
from contmax_lab.tasks.translation import TranslationModel

# Widths of the basis functions in the paper.
_WIDTHS = (0.03, 0.1, 0.3)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What all steps of a translation need of the source sentences, computed once.

    Args:
        values: states of the pieces, (B, L, D); 0 where there is none.
        keys: projections of the states for the scores, (B, L, H).
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
    if looks[0].mean is None:
        return Look(weights)
    return Look(weights, *(torch.cat([getattr(look, name) for look in looks], 1) for name in ("mean", "variance")))


class SourceAttention(nn.Module):
    r"""Scores of Bahdanau et al., α-entmax over the pieces, and a density with the moments of these weights.

    .. math:: p = \alpha\text{-entmax}(v^\top\tanh(W h_\ell + U q)), \qquad
              c_{\text{discrete}} = \sum_\ell p_\ell h_\ell, \qquad c_{\text{continuous}} = E_{\hat p}[V(t)],

    where :math:`\hat p` is the α-Gaussian with the mean and the variance of p over the sentence as the unit interval,
    and V the ridge fit of the states. A fit is linear in the states: V(t) = Σ_ℓ (Gψ(t))_ℓ h_ℓ, with G the same for all
    questions and for all sentences of one length. So E[V] = Σ_ℓ w_ℓ h_ℓ with w = G E[ψ], and the two attentions take
    one sum over the states, with the weights p + w.

    Args:
        model: the settings; D = 2·encoder_dim channels of the states, decoder_dim of the questions and of the scores.

    Shape:
        query (B, Q, decoder_dim); context (B, Q, D).

    Example:
        >>> attend = SourceAttention(TranslationModel(encoder_dim=4, decoder_dim=6))
        >>> memory = attend.memory(torch.randn(2, 7, 8), torch.ones(2, 7, dtype=torch.bool))
        >>> context, look = attend(torch.randn(2, 1, 6), memory)
        >>> context.shape, look.weights.shape, look.mean.shape
        (torch.Size([2, 1, 8]), torch.Size([2, 1, 7]), torch.Size([2, 1]))
    """

    def __init__(self, model: TranslationModel) -> None:
        super().__init__()
        self.kind, self.alpha, self.penalty = model.attention, float(model.alpha), float(model.penalty)
        self.basis = GaussianBasis.linspace(model.num_basis, _WIDTHS)
        self.key = nn.Linear(2 * model.encoder_dim, model.decoder_dim)
        self.query = nn.Linear(model.decoder_dim, model.decoder_dim, bias=False)
        self.energy = nn.Linear(model.decoder_dim, 1, bias=False)

    def memory(self, values: Tensor, mask: Tensor) -> Memory:
        """What all questions need of sentences: states (B, L, D), and where pieces are, (B, L)."""
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


@dataclasses.dataclass(frozen=True)
class Guesses:
    """What the network says of each piece of a translation, knowing those before.

    Args:
        logits: of the pieces, (B, T, V).
        look: where it looked, T questions.
        alpha: of the attention.
        mask: which places of the source hold a piece, (B, L).
        combined: whether the weights are attended with beside the density.
        smoothing: of the labels, in training.
    """

    logits: Tensor
    look: Look
    alpha: float
    mask: Tensor
    combined: bool = False
    smoothing: float = 0.0

    @property
    def density(self) -> BetaGaussian | None:
        """Over the source sentences as the unit interval, of batch shape (B, T)."""
        return self.look.density(self.alpha)


def shares(guesses: Guesses) -> Tensor:
    """How much of the attention falls to each piece of the source, (B, T, L).

    Weights of a discrete attention; of a density what falls to the cell of a piece, of all that falls inside the
    sentence; of both, the mean.
    """
    weights, density = guesses.look.weights, guesses.density
    if density is None:
        return weights
    count = guesses.mask.sum(-1, keepdim=True).clamp(min=1)
    ends = torch.cat([torch.zeros_like(count), guesses.mask.cumsum(-1)], -1) / count
    below = density.cdf(ends.mT.unsqueeze(-1)).permute(1, 2, 0)
    mass = below.diff(dim=-1) * guesses.mask.unsqueeze(1)
    mass = mass / mass.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)
    return (weights + mass) / 2 if guesses.combined else mass


def inside(guesses: Guesses) -> Tensor:
    """Which pieces of the source have a positive weight, or lie where the density is positive, (B, T, L)."""
    mask, density = guesses.mask.unsqueeze(1), guesses.density
    found = (guesses.look.weights > 0) if density is None or guesses.combined else torch.zeros_like(mask)
    if density is not None:
        found = found | (
            (middles(guesses.mask).unsqueeze(1) - density.loc.unsqueeze(-1)).abs() < density.half_width.unsqueeze(-1)
        )
    return found & mask


def attention_measures(guesses: Guesses, said: Tensor) -> dict[str, Tensor]:
    """Measures of each sentence, (B,): means over the pieces of its translation.

    ``attended``: the share of the source pieces inside the support. ``entropy``: of the shares of the pieces, in nats.
    ``monotone``: of the steps from one piece to the next, the share in which the middle of the attention does not move
    back. ``diagonal``: how far that middle is from the corresponding place of the translation, as a share of the
    sentence. `said` (B, T) tells which places of the translation hold a piece.
    """
    count = said.sum(-1).clamp(min=1)
    found = shares(guesses)
    source = guesses.mask.sum(-1, keepdim=True).clamp(min=1)
    attended = inside(guesses).sum(-1) / source
    entropy = -torch.special.xlogy(found, found).sum(-1)
    middle = (found * middles(guesses.mask).unsqueeze(1)).sum(-1)
    place = (said.cumsum(-1) - 0.5) / count.unsqueeze(-1)
    steps = said[:, 1:] & said[:, :-1]
    forward = (middle[:, 1:] >= middle[:, :-1]) & steps
    return {
        "attended": (attended * said).sum(-1) / count,
        "entropy": (entropy * said).sum(-1) / count,
        # A translation of one piece is in order.
        "monotone": torch.where(steps.any(-1), forward.sum(-1) / steps.sum(-1).clamp(min=1), 1.0),
        "diagonal": ((middle - place).abs() * said).sum(-1) / count,
    }

"""What is measured of a converted model: zeros by layer, the deletion test, the order of similarities."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from contmax_lab.deletion import only, random_words
from contmax_lab.tasks.minilm._data import PADDING

# Share of the tokens of a review that the deletion test deletes.
_DELETED = 0.2


@dataclasses.dataclass(frozen=True)
class Weights:
    """What is counted of the weights of each text.

    Args:
        zeros: weights that are exactly zero, from tokens to tokens, without padding, (B, layers).
        pairs: weights of a layer, heads times the square of the tokens, (B,).
        received: what each token receives in the last layer, a mean over heads and over the tokens that attend, (B, L).
        alpha: of each layer, (B, layers).
    """

    zeros: Tensor
    pairs: Tensor
    received: Tensor
    alpha: Tensor

    @classmethod
    def of(cls, attentions: Sequence[Tensor], mask: Tensor, alpha: Tensor) -> "Weights":
        """Count.

        Args:
            attentions: of each layer, (B, H, L, L), queries before keys.
            mask: which tokens are no padding, (B, L).
            alpha: of each layer, (layers,).
        """
        among = (mask.unsqueeze(-1) & mask.unsqueeze(-2)).unsqueeze(1)
        zeros = torch.stack([((weights == 0) & among).sum((1, 2, 3)) for weights in attentions], dim=-1)
        lengths, heads = mask.sum(-1), attentions[-1].shape[1]
        last = (attentions[-1].float() * among).mean(1).sum(1)
        received = last / lengths.clamp(min=1).unsqueeze(-1)
        return cls(zeros, heads * lengths**2, received, alpha.to(zeros.device).expand(len(mask), -1))

    def per_text(self) -> dict[str, Tensor]:
        """The counts for each text, or for each group of texts that an example consists of."""
        return {"zeros": self.zeros, "pairs": self.pairs, "alpha": self.alpha}


@dataclasses.dataclass(frozen=True)
class Judged:
    """What a model says of reviews.

    Args:
        logits: of being positive, (B,).
        weights: what is counted of them; None where it is not asked for.
        without: logits of the reviews without some tokens, by the names of `shortened`.
    """

    logits: Tensor
    weights: Weights | None = None
    without: dict[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Matched:
    """Vectors of length 1 of the halves of reviews, (B, 2, E).

    Args:
        student: of the model with entmax.
        teacher: of the pretrained model with softmax.
        before: of the pretrained model, switched to entmax at once and not trained; None where it is not asked for.
        weights: what is counted of the student's weights.
    """

    student: Tensor
    teacher: Tensor
    before: Tensor | None = None
    weights: Weights | None = None

    def cosines(self, others: Tensor) -> Tensor:
        """The mean cosine of both halves to those of the teacher, (B,)."""
        return (others * self.teacher).sum(-1).mean(-1)


def shortened(tokens: Tensor, received: Tensor, draws: Tensor) -> dict[str, Tensor]:
    """Reviews without a fifth of their tokens: ``attended``, those that receive most; ``random``, as many others.

    What is left is read as if it were the whole review. The tokens that begin and end a text are not deleted.

    Args:
        tokens: (B, L), padded with 0.
        received: what each token receives, (B, L).
        draws: a random number for each token, (B, L).
    """
    mask = tokens != PADDING
    lengths = mask.sum(-1, keepdim=True)
    steps = torch.arange(tokens.shape[-1], device=tokens.device)
    inner = mask & (steps > 0) & (steps < lengths - 1)
    count = (_DELETED * inner.sum(-1)).round().long()
    orders = {"attended": -received, "random": draws}
    return {name: only(tokens, mask & ~random_words(count, inner, order)) for name, order in orders.items()}


def halves(tokens: Tensor) -> Tensor:
    """The two halves of each text, (B, 2, L // 2 + 8), each between the tokens that begin and end the text.

    Example:
        >>> halves(torch.tensor([[7, 1, 2, 3, 8]]))
        tensor([[[7, 1, 8, 0, 0, 0, 0, 0, 0, 0],
                 [7, 2, 3, 8, 0, 0, 0, 0, 0, 0]]])
    """
    lengths = (tokens != PADDING).sum(-1, keepdim=True)
    middle = lengths // 2
    # Two more than half would do; with eight it is a multiple of 8 if L is one of 16, which GPUs want.
    steps = torch.arange(tokens.shape[-1] // 2 + 8, device=tokens.device)
    parts = []
    for start, end in ((torch.ones_like(middle), middle), (middle, lengths - 1)):
        last = end - start + 1
        places = torch.where(steps == last, lengths - 1, start - 1 + steps)
        places = torch.where(steps == 0, 0, places).clamp(0, tokens.shape[-1] - 1)
        parts.append(torch.where(steps <= last, tokens.gather(-1, places), PADDING))
    return torch.stack(parts, 1)


def spearman(vectors: Tensor, teacher: Tensor) -> float:
    """Do vectors put pairs of texts into the order of similarity in which the teacher's put them?

    The correlation of the ranks of cosines. A pair are the halves of one review, or a half of it and one of the review
    that stands half of all reviews further on.

    Args:
        vectors, teacher: of length 1, (B, 2, E).
    """
    ranks = [_similarities(found).argsort().argsort().double() for found in (vectors, teacher)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def _similarities(vectors: Tensor) -> Tensor:
    first, second = vectors.unbind(1)
    others = second.roll(len(second) // 2, 0)
    return torch.cat([(first * second).sum(-1), (first * others).sum(-1)])

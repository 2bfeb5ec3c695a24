"""Beam search over all sentences of a batch at once."""

from typing import Any, Protocol

import torch
from torch import Tensor

from contmax_lab.tasks.translation._pieces import END, PADDING, START

# Steps between two looks at whether all sentences are done; each makes the host wait for the device.
_LOOK_EVERY = 8
_NEVER = [PADDING, START]


class Decoding(Protocol):
    """A model that says one piece after the other. Hypotheses are Q for each of B sentences."""

    def memory(self, source: Tensor) -> Any:
        """What is known of sentences, (B, L), before anything is said."""

    def first(self, memory: Any) -> dict[str, Tensor]:
        """The state of one hypothesis for each sentence, tensors (B, 1, …)."""

    def step(self, pieces: Tensor, state: dict[str, Tensor], memory: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, Q, V) of the next piece, and the state, after the last pieces (B, Q)."""


@torch.no_grad()
def beam_search(
    model: Decoding, source: Tensor, *, beam: int, max_output: int, length_penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""The best translations that are found when `beam` hypotheses of each sentence are followed at a time.

    .. math:: \arg\max_y \frac{\log p(y \mid x)}{|y|^{\gamma}}, \qquad |y| \text{ counted with the end}

    Args:
        model: in evaluation mode.
        source: pieces of the sentences, (B, L).
        beam: k.
        max_output: most pieces, the end not counted; a hypothesis of that length has to end.
        length_penalty: γ ≥ 0.

    Returns:
        Pieces (B, T), with the end and padding behind it, and the score of each sentence, (B,).
    """
    search = _Search(len(source), beam, max_output, length_penalty, source.device)
    memory = model.memory(source)
    state = model.first(memory)
    # All hypotheses but one of each sentence are impossible at first.
    state = {name: part.expand(-1, beam, *part.shape[2:]) for name, part in state.items()}
    last = torch.full((len(source), beam), START, device=source.device)
    for length in range(1, max_output + 2):
        logits, state = model.step(last, state, memory)
        parents, last = search.advance(logits, length)
        state = {name: _taken(part, parents) for name, part in state.items()}
        if length % _LOOK_EVERY == 0 and search.is_done():
            break
    return search.best, search.best_scores


class _Search:
    """Hypotheses under way, and the best finished one of each sentence."""

    def __init__(self, sentences: int, beam: int, max_output: int, penalty: float, device: torch.device) -> None:
        self.beam, self.max_output, self.penalty = beam, max_output, penalty
        self.scores = torch.full((sentences, beam), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.said = torch.full((sentences, beam, max_output + 1), PADDING, device=device)
        self.best = torch.full((sentences, max_output + 1), PADDING, device=device)
        self.best_scores = torch.full((sentences,), -torch.inf, device=device)
        self.finished = torch.zeros(sentences, dtype=torch.long, device=device)

    def advance(self, logits: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Take the best continuations; hypotheses that these continue, and their new pieces, both (B, k)."""
        chances = logits.float().log_softmax(-1)
        chances[..., _NEVER] = -torch.inf
        if length > self.max_output:
            chances[..., :END] = chances[..., END + 1 :] = -torch.inf
        totals = self.scores.unsqueeze(-1) + chances
        # One continuation of each hypothesis ends, so that among twice as many there are enough that do not.
        scores, flat = totals.flatten(1).topk(min(2 * self.beam, totals[0].numel()), dim=-1)
        parents, pieces = flat // totals.shape[-1], flat % totals.shape[-1]
        ends = pieces == END
        self._finish(scores.where(ends, -torch.inf)[:, : self.beam], parents[:, : self.beam], length)
        order = ends.int().argsort(dim=-1, stable=True)[:, : self.beam]
        parents, pieces = parents.gather(-1, order), pieces.gather(-1, order)
        self.scores = scores.where(~ends, -torch.inf).gather(-1, order)
        self.said = _taken(self.said, parents)
        self.said[..., length - 1] = pieces
        return parents, pieces

    def _finish(self, scores: Tensor, parents: Tensor, length: int) -> None:
        """Hypotheses that end among the best; a sentence takes no more of them than there is room in its beam."""
        score, place = (scores / length**self.penalty).max(-1)
        ended = _taken(self.said, parents.gather(-1, place.unsqueeze(-1))).squeeze(1)
        ended[:, length - 1] = END
        better = (score > self.best_scores) & (self.finished < self.beam)
        self.best = torch.where(better.unsqueeze(-1), ended, self.best)
        self.best_scores = torch.where(better, score, self.best_scores)
        self.finished += scores.isfinite().sum(-1)

    def is_done(self) -> bool:
        """Whether as many hypotheses of each sentence have ended as are followed."""
        return bool((self.finished >= self.beam).all())


def _taken(part: Tensor, parents: Tensor) -> Tensor:
    """Those of (B, Q, …) that the places (B, k) name."""
    places = parents.view(*parents.shape, *[1] * (part.dim() - 2)).expand(*parents.shape, *part.shape[2:])
    return part.gather(1, places)

"""Beam search over all sentences of a batch at once."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from contmax_lab.recorded import RecordedStep
from contmax_lab.tasks.translation._data import END, PADDING, START

# Steps between two checks whether all sentences are done; each check makes the host wait for the device.
_LOOK_EVERY = 8


class Decoding(Protocol):
    """A model that says one piece after the other. Hypotheses are Q for each of B sentences."""

    def memory(self, source: Tensor) -> Any:
        """What is known of sentences, (B, L), before anything is said."""

    def first(self, memory: Any) -> dict[str, Tensor]:
        """The state of one hypothesis for each sentence, tensors (B, 1, …)."""

    def step(self, pieces: Tensor, state: dict[str, Tensor], memory: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits (B, Q, V) of the next piece, and the state, after the last pieces (B, Q).

        A state whose tensors keep their shapes in the first step keeps them in all. On a GPU such a step is recorded:
        it must not look at the values of tensors.
        """


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
    search = _Search(model, source, beam, max_output, length_penalty)
    search.step()
    step: Callable[[], None] = search.step
    if source.is_cuda and search.keeps_its_sizes:
        step = RecordedStep(search.step, rehearsals=1)
    for length in range(2, max_output + 1):
        step()
        if length % _LOOK_EVERY == 0 and bool((search.finished >= beam).all()):
            break
    else:
        search.step(must_end=True)
    return search.best, search.best_scores


class _Search:
    """Unfinished hypotheses, and the best finished one of each sentence; a step changes them in place."""

    def __init__(self, model: Decoding, source: Tensor, beam: int, max_output: int, penalty: float) -> None:
        self.model, self.beam, self.penalty = model, beam, penalty
        sentences, device = len(source), source.device
        self.memory = model.memory(source)
        # All hypotheses begin alike: give all but the first of each sentence the score −∞.
        state = {name: part.expand(-1, beam, *part.shape[2:]) for name, part in model.first(self.memory).items()}
        self.state = {name: part.clone() for name, part in state.items()}
        self.scores = torch.full((sentences, beam), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.last = torch.full((sentences, beam), START, device=device)
        self.said = torch.full((sentences, beam, max_output + 1), PADDING, device=device)
        self.best = torch.full((sentences, max_output + 1), PADDING, device=device)
        self.best_scores = torch.full((sentences,), -torch.inf, device=device)
        self.finished = torch.zeros(sentences, dtype=torch.long, device=device)
        # A tensor on the device, so that a recorded step counts as well.
        self.length = torch.zeros((), dtype=torch.long, device=device)
        self.keeps_its_sizes = True

    def step(self, must_end: bool = False) -> None:
        """Extend every hypothesis by one piece, or by the end where it must end."""
        logits, state = self.model.step(self.last, self.state, self.memory)
        self.length += 1
        parents = self._advance(logits, must_end)
        # Gather all before copying any: parts of the new state may share memory with the old one.
        taken = {name: _taken(part, parents) for name, part in state.items()}
        for name, part in taken.items():
            if self.state[name].shape == part.shape:
                self.state[name].copy_(part)
            else:
                self.state[name], self.keeps_its_sizes = part, False

    def _advance(self, logits: Tensor, must_end: bool) -> Tensor:
        """Take the best continuations; returns which hypotheses they continue, (B, k)."""
        chances = logits.float().log_softmax(-1)
        for piece in (PADDING, START):
            chances[..., piece] = -torch.inf
        if must_end:
            chances[..., :END] = chances[..., END + 1 :] = -torch.inf
        totals = self.scores.unsqueeze(-1) + chances
        # At most one continuation of each hypothesis ends, so 2·beam candidates hold enough that do not.
        scores, flat = totals.flatten(1).topk(min(2 * self.beam, totals[0].numel()), dim=-1)
        parents, pieces = flat // totals.shape[-1], flat % totals.shape[-1]
        ends = pieces == END
        self._finish(scores.where(ends, -torch.inf)[:, : self.beam], parents[:, : self.beam])
        order = ends.int().argsort(dim=-1, stable=True)[:, : self.beam]
        parents = parents.gather(-1, order)
        self.last.copy_(pieces.gather(-1, order))
        self.scores.copy_(scores.where(~ends, -torch.inf).gather(-1, order))
        self.said.copy_(self._with_last(_taken(self.said, parents), self.last))
        return parents

    def _finish(self, scores: Tensor, parents: Tensor) -> None:
        """Record the best finished hypothesis; a sentence counts at most `beam` finished ones."""
        score, place = (scores / self.length**self.penalty).max(-1)
        ended = _taken(self.said, parents.gather(-1, place.unsqueeze(-1))).squeeze(1)
        ended = self._with_last(ended, torch.full_like(place, END))
        better = (score > self.best_scores) & (self.finished < self.beam)
        self.best.copy_(torch.where(better.unsqueeze(-1), ended, self.best))
        self.best_scores.copy_(torch.where(better, score, self.best_scores))
        self.finished += scores.isfinite().sum(-1)

    def _with_last(self, said: Tensor, pieces: Tensor) -> Tensor:
        """Hypotheses (…, T) with their last pieces (…) written into them."""
        at = (self.length - 1).expand(pieces.shape).unsqueeze(-1)
        return said.scatter(-1, at, pieces.unsqueeze(-1))


def _taken(part: Tensor, parents: Tensor) -> Tensor:
    """Select k of Q hypotheses of each sentence: (B, Q, …), (B, k) → (B, k, …)."""
    places = parents.view(*parents.shape, *[1] * (part.dim() - 2)).expand(*parents.shape, *part.shape[2:])
    return part.gather(1, places)

"""What a network says of examples, and where it looked."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contmax.basis import Basis
from contmax_lab.attention import Attended, AttentionHeads, attended_observations
from contmax_lab.contract import Look
from contmax_lab.labelled._examples import Targets
from contmax_lab.settings import AttentionModel


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the network says of each example, and where it looked.

    Args:
        scores: of the classes, (B, C); or the number, in the units of the user, (B,).
        unit: standard deviation of the numbers in training; for classes 1.
        heads: what each head looked at.
        positions: of the observations, (B, L) on the line, (B, L, 2) on the plane.
        mask: which observations are there, (B, L).
        targets: classes or numbers that it was trained for.
    """

    scores: Tensor
    unit: Tensor
    heads: Sequence[Attended]
    positions: Tensor
    mask: Tensor
    targets: Targets

    @property
    def inside(self) -> Tensor:
        """Which observations any head attends to, (B, L)."""
        return attended_observations(self.heads, self.positions, self.mask)


class KnowsItsData(nn.Module):
    """A network that knows what it was trained for.

    Weights that were trained on other data, with another vocabulary or other classes, would fit by their shapes and
    mean nothing: loading them is an error.

    Args:
        targets: classes or numbers.
        known: what else the weights depend on, such as the vocabulary; anything JSON can hold.
    """

    fingerprint: Tensor

    def __init__(self, targets: Targets, known: Any = None) -> None:
        super().__init__()
        self.targets = targets
        digest = hashlib.sha256(
            json.dumps([[targets.classes, targets.mean, targets.deviation], known]).encode()
        ).digest()
        self.register_buffer("fingerprint", torch.tensor(list(digest), dtype=torch.uint8))

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        stored = state_dict.get(prefix + "fingerprint")
        if stored is not None and not torch.equal(stored.cpu(), self.fingerprint.cpu()):
            errors.append(
                "the training data is not what it was trained on: its classes or its vocabulary have changed. Pass the "
                "old file by --data.train, or train again"
            )
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)


class Decision(KnowsItsData):
    """A linear map from context to classes or to a number.

    Args:
        width: channels of the context.
        targets: classes or numbers.
        known: of `KnowsItsData`.

    Example:
        >>> decide = Decision(8, Targets(("cat", "dog")))
        >>> decide(torch.zeros(3, 8)).shape
        torch.Size([3, 2])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, targets: Targets, known: Any = None) -> None:
        super().__init__(targets, known)
        self.linear = nn.Linear(width, len(targets.classes) or 1)
        self.is_number = not targets.classes
        self.register_buffer("mean", torch.tensor(targets.mean, dtype=torch.float32))
        self.register_buffer("deviation", torch.tensor(targets.deviation, dtype=torch.float32))

    def forward(self, context: Tensor) -> Tensor:
        """Scores (B, C) or numbers (B,) of contexts (B, width)."""
        scores: Tensor = self.linear(context).float()
        return self.mean + self.deviation * scores.squeeze(-1) if self.is_number else scores

    def probabilities(self, context: Tensor) -> Tensor:
        """Probabilities of the classes, (B, C); or the numbers, (B, 1)."""
        scores: Tensor = self(context)
        return scores.unsqueeze(-1) if self.is_number else scores.softmax(-1)


def attention_over(basis: Basis, width: int, model: AttentionModel) -> AttentionHeads:
    """The heads that the settings ask for, over values with `width` channels."""
    return AttentionHeads(model.heads, model.attention, width, model.alpha, basis, learnable=model.learn_alpha)


def look_of(
    attend: nn.Module, values: Tensor, heads: Sequence[Attended], decide: Callable[[Tensor], Tensor], **shown: Any
) -> Look:
    """What a model attends to in one input, and how it decides.

    Args:
        attend: an attention of the library.
        values: what it attends to, (1, L, D).
        heads, decide: as of `Look`.
        shown: ``classes``, and ``words``, or ``pixels`` and ``grid``, as of `Look`.
    """
    # Combined attention keeps basis and penalty in its continuous part.
    continuous = getattr(attend, "continuous", attend)
    basis, penalty = getattr(continuous, "basis", None), getattr(continuous, "penalty", 0.01)
    return Look(values[0], heads, decide, basis=basis, penalty=penalty, **shown)


def middles(mask: Tensor) -> Tensor:
    """Middles of the observations where the mask (B, L) is True, evenly spaced over the unit interval, (B, L)."""
    return (mask.cumsum(-1) - 0.5) / mask.sum(-1, keepdim=True).clamp(min=1)


def cell_centres(grid: tuple[int, ...], like: Tensor) -> Tensor:
    """Centres of the cells of the unit interval, (L,), or square, row by row, (HW, 2), on the device of `like`."""
    return torch.cartesian_prod(*((torch.arange(count, device=like.device) + 0.5) / count for count in grid))


def heaviest(mass: Tensor, most: Tensor | float) -> Tensor:
    """The smallest set of points of each row that holds the mass `most`, (B, P); of equal ones, the first."""
    falling, order = mass.sort(dim=-1, descending=True, stable=True)
    held = falling.cumsum(-1) - falling < most
    return torch.zeros_like(held).scatter(-1, order, held)

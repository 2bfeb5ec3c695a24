"""Parameters that learn at a pace of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Some parameters of a model.

    Args:
        parameters: of the model; those without gradient are left out by the loop.
        learning_rate: factor on that of the recipe.
        weight_decay: instead of that of the recipe; None = the recipe's.
    """

    parameters: Sequence[nn.Parameter]
    learning_rate: float = 1.0
    weight_decay: float | None = None

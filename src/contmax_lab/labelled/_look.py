"""Inputs taken apart, for tasks whose models have `AttentionHeads` and a `Decision`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from contmax_lab.attention import AttentionHeads
from contmax_lab.contract import Look
from contmax_lab.labelled._answer import Answer, Decision


def look_of(
    attention: AttentionHeads, decision: Decision, values: Tensor, answer: Answer, classes: Sequence[str], **shown: Any
) -> Look:
    """What a model attends to in one input, and how it decides.

    Args:
        attention: of the model.
        decision: of the model.
        values: what it attends to, (1, L, D).
        answer: to that input alone.
        classes: their names; empty for numbers.
        shown: ``words``, or ``pixels`` and ``grid``, as of `Look`.
    """
    attend: Any = attention.heads[0]
    # Of a combined attention, the continuous part.
    continuous = getattr(attend.attend, "continuous", attend.attend)

    def decide(context: Tensor) -> Tensor:
        scores: Tensor = decision(context)
        return scores.softmax(-1) if classes else scores.unsqueeze(-1)

    return Look(
        values[0],
        answer.heads,
        decide,
        classes,
        basis=getattr(continuous, "basis", None),
        penalty=getattr(continuous, "penalty", 0.01),
        **shown,
    )

"""The learning rate as a function of the step."""

import math

from contmax_lab.contract import TrainingConfig


def learning_rate(config: TrainingConfig, step: int, total: int) -> float:
    r"""Linear warm-up to the highest value η, then the schedule.

    .. math:: \text{cosine: } \tfrac\eta2 (1 + \cos \pi u), \quad \text{linear: } \eta\,(1 - u), \quad
              \text{inverse\_sqrt: } \eta \sqrt{w / s}

    with s the step from 1, w the steps of the warm-up and u the share of the rest that is done.

    Args:
        config: of the training.
        step: from 0.
        total: steps of the whole training.

    Example:
        >>> config = TrainingConfig(learning_rate=0.1, schedule="cosine", warmup_steps=2)
        >>> [round(learning_rate(config, step, 6), 3) for step in range(6)]
        [0.05, 0.1, 0.1, 0.085, 0.05, 0.015]
    """
    peak, warmup = float(config.learning_rate), int(config.warmup_steps)
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(total - warmup, 1)
    if config.schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "linear":
        return peak * (1 - done)
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / (step + 1))
    return peak

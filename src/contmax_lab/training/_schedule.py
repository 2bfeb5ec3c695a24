"""The learning rate: a function of the step, and of what the training has found out so far."""

import dataclasses
import math
from collections.abc import Mapping

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


@dataclasses.dataclass
class Schedule:
    """The learning rate of a training, and all that it depends on beside the step.

    Args:
        config: of the training.
        factor: by which the rate has fallen at the ends of epochs, or on a plateau.
        stale: evaluations without a new best since then.

    Example:
        >>> schedule = Schedule(TrainingConfig(learning_rate=0.1, schedule="plateau", decay_every=2))
        >>> for best in (True, False, False):
        ...     schedule.evaluated(best)
        >>> schedule.rate(step=3, total=10)
        0.05
    """

    config: TrainingConfig
    factor: float = 1.0
    stale: int = 0

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0, out of `total`."""
        return learning_rate(self.config, step, total) * self.factor

    def epoch_done(self, epoch: int) -> None:
        """The epoch with this number, from 1, is over."""
        every = self.config.schedule == "epochs" and epoch % self.config.decay_every == 0
        if every or (self.config.schedule == "milestones" and epoch in self.config.decay_at):
            self.factor *= self.config.decay

    def evaluated(self, is_best: bool) -> None:
        """An evaluation found the best weights so far, or did not."""
        self.stale = 0 if is_best else self.stale + 1
        if self.config.schedule == "plateau" and self.stale >= self.config.decay_every:
            self.factor, self.stale = self.factor * self.config.decay, 0

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"factor": self.factor, "stale": self.stale}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.factor, self.stale = state["factor"], int(state["stale"])

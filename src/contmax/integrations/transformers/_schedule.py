"""From softmax to entmax during a training."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

from torch.nn import Module
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from contmax.integrations.transformers._alpha import set_alpha
from contmax.integrations.transformers._layers import entmax_layers


class AlphaSchedule(TrainerCallback):
    r"""A callback for `transformers.Trainer` that raises α from exactly 1 to its goal.

    .. math:: \alpha(s) = 1 + (\alpha_{goal} - 1)\,\min\big(1, s / (r\,S)\big)

    after s of S steps of the optimizer. A pretrained model with softmax is unchanged at the start and becomes sparse
    gradually. Evaluations and checkpoints have the α of their step, and a resumed training continues with it. After
    ``load_best_model_at_end`` the model has the α it had when it was best.

    torch.compile makes a new program for every new α, and gives up after a few: train without it while α rises.

    Args:
        goal: α at the end, a number or one per layer.
        rise: r, the share of the training during which α rises; after it α stays at its goal.

    Raises:
        ValueError: if a goal is not positive, or `rise` not in (0, 1].

    Example:
        >>> schedule = AlphaSchedule(1.5, rise=0.5)
        >>> [schedule.alpha_after(share) for share in (0, 0.25, 0.5, 1)]
        [1.0, 1.25, 1.5, 1.5]

    In your own training loop, ``set_alpha(model, schedule.alpha_after(step / steps))`` does the same.
    """

    def __init__(self, goal: float | Sequence[float] = 1.5, *, rise: float = 0.7) -> None:
        self.goal: float | list[float] = float(goal) if isinstance(goal, Real) else [float(g) for g in _several(goal)]
        goals = [self.goal] if isinstance(self.goal, float) else self.goal
        if not goals or not all(0 < each < float("inf") for each in goals):
            raise ValueError(f"goal must be positive, a number or one per layer; got {goal}. Pass 1.5.")
        if not 0 < rise <= 1:
            raise ValueError(f"rise is the share of the training during which α changes, in (0, 1]; got {rise}.")
        self.rise = rise

    def alpha_after(self, share: float) -> float | list[float]:
        """α after a share of the training, from 0 to 1."""
        done = min(max(share / self.rise, 0.0), 1.0)
        if isinstance(self.goal, list):
            return [_between(goal, done) for goal in self.goal]
        return _between(self.goal, done)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Set α for the step at which the training begins.

        Raises:
            ValueError: if the model does not use entmax attention.
        """
        entmax_layers(context["model"])
        self._set(context["model"], state.global_step, state)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Set α for the next step."""
        self._set(context["model"], state.global_step, state)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """If the trainer has loaded the best weights, set α to the value that belongs to them."""
        best = state.best_global_step if args.load_best_model_at_end else None
        self._set(context["model"], state.global_step if best is None else best, state)

    def _set(self, model: Module, step: int, state: TrainerState) -> None:
        set_alpha(model, self.alpha_after(step / max(1, state.max_steps)))


def _between(goal: float, done: float) -> float:
    """From 1 to the goal, exact at both ends."""
    return (1 - done) + goal * done


def _several(goal: float | Sequence[float]) -> Sequence[float]:
    return cast(Sequence[float], goal)

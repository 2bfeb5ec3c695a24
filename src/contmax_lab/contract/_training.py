"""How to train: the section that recipes of all tasks share."""

import dataclasses
from typing import Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Args:
        epochs: passes over the training examples, at most.
        batch_size: examples per step over all processes together; 0 = all of them.
        optimizer: adam, adamw or sgd (with momentum 0.9).
        learning_rate: its highest value.
        weight_decay: L2 penalty (decoupled for adamw).
        schedule: how the learning rate falls after the warm-up.
        warmup_steps: steps over which it rises linearly.
        clip_norm: largest norm of the gradient; 0 = no limit.
        monitor: the validation metric that decides which weights are kept.
        goal: whether the smallest or the largest value of it is best.
        patience: stop after so many evaluations without a new best; 0 = never.
        evaluate_every: epochs between evaluations on the validation examples.
        checkpoint_seconds: seconds between checkpoints.
        precision: "no" = float32, "bf16" = bfloat16 autocast.
        device: auto = the GPU where there is one.
        tensorboard: write event files beside metrics.jsonl (needs the package tensorboard).
    """

    epochs: PositiveInt = 10
    batch_size: NonNegativeInt = 64
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: PositiveFloat = 0.001
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["constant", "cosine", "linear", "inverse_sqrt"] = "constant"
    warmup_steps: NonNegativeInt = 0
    clip_norm: NonNegativeFloat = 0.0
    monitor: str = "loss"
    goal: Literal["min", "max"] = "min"
    patience: NonNegativeInt = 0
    evaluate_every: PositiveInt = 1
    checkpoint_seconds: NonNegativeFloat = 30.0
    precision: Literal["no", "bf16"] = "no"
    device: Literal["auto", "cpu"] = "auto"
    tensorboard: bool = False

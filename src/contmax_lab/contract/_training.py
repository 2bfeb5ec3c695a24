"""How to train: the section that recipes of all tasks share."""

import dataclasses
from typing import Any, Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Args:
        epochs: passes over the training examples, at most.
        batch_size: examples per step over all processes together; 0 = all of them.
        batch_tokens: tokens per step over all processes, including padding, instead of batch_size; 0 = use batch_size.
        evaluation_batch_size: examples at once in an evaluation, over all processes; 0 = batch_size.
        accumulate: split each batch into this many parts, if it does not fit into memory; the step is the same, up to
            rounding and the random numbers of the model.
        optimizer: name of an optimizer of torch.optim: adam, adamw, sgd (with momentum 0.9), radam, …
        optimizer_options: more options of the optimizer, e.g. {betas: [0.9, 0.98]}.
        learning_rate: largest learning rate, which the schedule lowers.
        weight_decay: L2 penalty (decoupled for adamw).
        tries: learning_rate and weight_decay of trainings that follow each other from the same first weights, e.g.
            [{learning_rate: 0.01, weight_decay: 0.1}]; of all of them, the weights with the best monitored metric are
            kept. Only for tables whose repetitions are trained together. By default one, with the settings above.
        schedule: how the learning rate falls after the warm-up; with epochs by decay every decay_every epochs, with
            milestones by decay after each of the epochs decay_at, with plateau by decay after decay_every evaluations
            without a new best.
        decay: factor on the learning rate, for the schedules epochs, milestones and plateau.
        decay_every: epochs, or for plateau evaluations, after which decay applies.
        decay_at: epochs after which decay applies, for milestones, e.g. [10, 12].
        warmup_steps: steps over which the learning rate rises linearly from 0.
        clip_norm: largest norm of the gradient; 0 = no limit.
        monitor: the validation metric that decides which weights are kept.
        goal: whether the smallest or the largest value of the monitored metric is best.
        class_weights: weights of the classes in the loss, in training and evaluations. none = every example counts
            alike, balanced = every class does, however rare it is; or a number for each class, e.g. [1, 5], in the
            order in which contmax data check shows them.
        patience: stop after this many evaluations without a new best; 0 = never.
        evaluate_every: epochs between evaluations on the validation examples.
        checkpoint_seconds: seconds between checkpoints; 0 = one after every step.
        precision: "no" = float32, "bf16" = bfloat16 autocast.
        workers: processes that prepare batches ahead of time; 0 = none. Results do not depend on it.
        compile: compile the model with torch.compile; results differ in the last digits.
        record: on a GPU, record the steps of tasks that allow it and play them back: much faster where a model has many
            small steps, for up to twice the memory.
        device: auto = the GPU if there is one.
        wandb: project of Weights & Biases to send metrics to (needs the package wandb); empty = none.
        tensorboard: write event files beside metrics.jsonl (needs the package tensorboard).
    """

    epochs: PositiveInt = 10
    batch_size: NonNegativeInt = 64
    batch_tokens: NonNegativeInt = 0
    evaluation_batch_size: NonNegativeInt = 0
    accumulate: PositiveInt = 1
    optimizer: str = "adam"
    optimizer_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    learning_rate: PositiveFloat = 0.001
    weight_decay: NonNegativeFloat = 0.0
    tries: list[dict[str, NonNegativeFloat]] = dataclasses.field(default_factory=list)
    schedule: Literal["constant", "cosine", "linear", "inverse_sqrt", "epochs", "milestones", "plateau"] = "constant"
    decay: PositiveFloat = 0.5
    decay_every: PositiveInt = 1
    decay_at: list[PositiveInt] = dataclasses.field(default_factory=list)
    warmup_steps: NonNegativeInt = 0
    clip_norm: NonNegativeFloat = 0.0
    monitor: str = "loss"
    goal: Literal["min", "max"] = "min"
    class_weights: Literal["none", "balanced"] | list[PositiveFloat] = "none"
    patience: NonNegativeInt = 0
    evaluate_every: PositiveInt = 1
    checkpoint_seconds: NonNegativeFloat = 30.0
    precision: Literal["no", "bf16"] = "no"
    workers: NonNegativeInt = 0
    compile: bool = False
    record: bool = True
    device: Literal["auto", "cpu"] = "auto"
    wandb: str = ""
    tensorboard: bool = False

"""α of each attention layer: from the configuration, raised by a schedule, or learned by each head."""

from collections.abc import Sequence
from numbers import Real
from typing import Any, cast

from torch import Tensor
from torch.nn import Module
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from contmax.integrations.transformers._layers import (
    NAME,
    attention_layers,
    entmax_layers,
    heads_of,
    mark_initialised,
    number_layers,
)
from contmax.nn._alpha import AlphaModule

_DEFAULT = 1.5
# Attributes of configurations that hold the number of layers of a stack.
_COUNTS = ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def alpha_of(layer: Any) -> float | Tensor:
    """α of an attention layer: a number, or a tensor with one per head if they are learned."""
    learned = getattr(layer, "entmax_alpha", None)
    return _given_alpha(layer) if learned is None else cast(AlphaModule, learned).alpha


def _given_alpha(layer: Any) -> float:
    """α of a layer in its configuration.

    Raises:
        ValueError: if the configuration has one α per layer, and the layers have no numbers or another count.
    """
    alpha = getattr(layer.config, "entmax_alpha", None)
    if alpha is None:
        return _DEFAULT
    if isinstance(alpha, Real):
        return float(alpha)
    number = getattr(layer, "entmax_layer", getattr(layer, "layer_idx", None))
    if number is None:
        raise ValueError(
            f"config.entmax_alpha has one α per layer, and {type(layer).__name__} does not know which layer it is. "
            f'Call model.set_attn_implementation("{NAME}") after contmax.integrations.transformers.register().'
        )
    _require_one_per_layer(alpha, layer.config)
    return float(alpha[number])


def set_alpha(model: Module, alpha: float | Sequence[float]) -> None:
    """Set the α of a model, in its configuration and in those of its parts.

    ``model.config.entmax_alpha = …`` is enough *before* a model is made. Afterwards encoders, decoders and parts of
    composite models may have their own configurations, which only this function reaches.

    Args:
        model: any model of `transformers`, or a module with one inside.
        alpha: α > 0; 1 is softmax. A number for all layers, or one per layer; in an encoder–decoder, layer i of both
            has the same α.

    Raises:
        ValueError: if it is not positive, does not have one number per layer, or the model learns its α or does not use
            entmax attention.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from contmax.integrations.transformers import register, set_alpha
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> model = BertModel._from_config(config, attn_implementation="entmax")
        >>> set_alpha(model, [1.0, 1.5])
        >>> model.config.entmax_alpha
        [1.0, 1.5]
    """
    if any(hasattr(layer, "entmax_alpha") for _, layer in attention_layers(model)):
        raise ValueError(
            f"{type(model).__name__} learns its α, so it cannot be set. Load a model whose α is not learned."
        )
    values = _positive(alpha, "α")
    entmax_layers(model)
    configs = [getattr(module, "config", None) for module in model.modules()]
    configurations = [config for config in configs if isinstance(config, PreTrainedConfig)]
    for config in configurations:
        _require_one_per_layer(values, config)
    for config in configurations:
        config.entmax_alpha = values
    number_layers(model)


def make_alpha_learnable(model: Module, alpha: float | None = None) -> None:
    r"""Let each head of each attention layer learn its own α inside (1, 2).

    The parameters are part of the model: `save_pretrained` writes them, and `from_pretrained` reads them in any process
    that has called :func:`register`. If an optimizer exists already, add the new parameters to it; their names end in
    ``entmax_alpha.alpha_logit``. Weight decay pulls α towards 1.5.

    Args:
        model: a model with ``attn_implementation="entmax"``, or a module with one inside.
        alpha: α to begin with, in (1, 2); by default the value in the configuration, or 1.5.

    Raises:
        ValueError: if α is not inside (1, 2), or the model does not use entmax attention.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from contmax.integrations.transformers import make_alpha_learnable, register
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> model = BertModel._from_config(config, attn_implementation="entmax")
        >>> make_alpha_learnable(model)
        >>> sum("alpha_logit" in name for name, _ in model.named_parameters())
        2

    Reference: Correia, Niculae & Martins 2019.
    """
    layers = entmax_layers(model)
    number_layers(model)
    # Making all of them first leaves the model as it was if one cannot be made.
    learned: list[Any] = [_learned(layer, alpha) for layer in layers]
    for layer, module in zip(layers, learned, strict=True):
        mark_initialised(module)
        layer.entmax_alpha = module
    for part in model.modules():
        if part in layers or (isinstance(part, PreTrainedModel) and any(x in layers for x in part.modules())):
            cast(PreTrainedConfig, part.config).entmax_alpha_learnable = True


def attach_learned_alpha(model: PreTrainedModel) -> None:
    """Add the parameters of a learned α to the layers whose configuration has one: `from_pretrained` fills them."""
    for _, layer in attention_layers(model):
        if getattr(layer.config, "entmax_alpha_learnable", False) and not hasattr(layer, "entmax_alpha"):
            layer.entmax_alpha = _learned(layer, None)


def _learned(layer: Any, alpha: float | None) -> AlphaModule:
    start = _given_alpha(layer) if alpha is None else alpha
    module = AlphaModule(start, learnable=True, num_heads=heads_of(layer))
    like = next(layer.parameters(), None)
    return module if like is None else module.to(like.device)


def _positive(alpha: float | Sequence[float], name: str) -> float | list[float]:
    """α as a float, or as a list with one per layer.

    Raises:
        ValueError: if there is none, or one is not positive and finite.
    """
    values = [float(alpha)] if isinstance(alpha, Real) else [float(a) for a in cast(Sequence[float], alpha)]
    if not values or not all(0 < value < float("inf") for value in values):
        raise ValueError(
            f"{name} must be positive, a number or one per layer; got {alpha}. 1 is softmax; 1.5 is a good choice."
        )
    return values[0] if isinstance(alpha, Real) else values


def _require_one_per_layer(alpha: float | Sequence[float], config: PreTrainedConfig) -> None:
    if isinstance(alpha, Real):
        return
    alpha = cast(Sequence[float], alpha)
    numbers = [getattr(config, name, None) for name in _COUNTS]
    layers = max((number for number in numbers if isinstance(number, int)), default=len(alpha))
    if len(alpha) != layers:
        raise ValueError(
            f"entmax_alpha must be a number or one per layer, {layers} for {type(config).__name__}; got {len(alpha)}."
        )


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
        self.goal = _positive(goal, "goal")
        if not 0 < rise <= 1:
            raise ValueError(f"rise is the share of the training during which α changes, in (0, 1]; got {rise}.")
        self.rise = rise

    def alpha_after(self, share: float) -> float | list[float]:
        """α after a share of the training, from 0 to 1."""
        done = min(max(share / self.rise, 0.0), 1.0)
        goals = self.goal if isinstance(self.goal, list) else [self.goal]
        alphas = [(1 - done) + goal * done for goal in goals]  # exact at both ends
        return alphas if isinstance(self.goal, list) else alphas[0]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """Set α for the step that follows, at the beginning of the training and after every step.

        Raises:
            ValueError: if the model does not use entmax attention.
        """
        self._set(context["model"], state.global_step, state)

    on_step_end = on_train_begin

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """If the trainer has loaded the best weights, set α to the value that belongs to them."""
        best = state.best_global_step if args.load_best_model_at_end else None
        self._set(context["model"], state.global_step if best is None else best, state)

    def _set(self, model: Module, step: int, state: TrainerState) -> None:
        set_alpha(model, self.alpha_after(step / max(1, state.max_steps)))

"""Entmax in models of `transformers`: registration, and α that is set, learned per head, or on a schedule."""

import functools
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, cast

from torch.nn import Module
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from contmax.integrations.transformers._attention import entmax_attention_forward
from contmax.integrations.transformers._layers import (
    NAME,
    attention_layers,
    entmax_layers,
    given_alpha,
    heads_of,
    is_initialised,
    mark_initialised,
    number_layers,
    require_attention,
    require_interface,
    require_one_per_layer,
    require_settable,
    uses_entmax,
)
from contmax.nn._module import AlphaModule

logger = logging.get_logger(__name__)


def register() -> None:
    """Make ``attn_implementation="entmax"`` available to models of `transformers`.

    It registers the attention function and the function that makes its masks, without which padding would be attended
    to. Methods of `transformers.PreTrainedModel` are extended, since transformers has no other hook for it:

    * models that have no attention or compute it by themselves refuse ``"entmax"`` when they are made or loaded, where
      transformers only logs a warning;
    * a model whose configuration says that α is learned is made with the parameters for it, so that `from_pretrained`
      finds them (see :func:`make_alpha_learnable`).

    Call it once per process, before models are made; calling it again changes nothing.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> register()
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> config.entmax_alpha = [1.25, 1.5]
        >>> BertModel._from_config(config, attn_implementation="entmax").config._attn_implementation
        'entmax'
    """
    AttentionInterface.register(NAME, entmax_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    for name, extended in EXTENDED.items():
        _extend(name, extended)


def _extend(name: str, extended: Callable[..., Any]) -> None:
    """Replace a method of `PreTrainedModel` by `extended(original, self or class, …)`; a second call does nothing."""
    given = vars(PreTrainedModel)[name]
    original = given.__func__ if isinstance(given, classmethod) else given
    if hasattr(original, "_extended_by_contmax"):
        return

    @functools.wraps(original)
    def method(*arguments: Any, **options: Any) -> Any:
        return extended(original, *arguments, **options)

    method._extended_by_contmax = True  # type: ignore[attr-defined]
    setattr(PreTrainedModel, name, classmethod(method) if isinstance(given, classmethod) else method)


def _init(original: Any, model: PreTrainedModel, *arguments: Any, **options: Any) -> None:
    """Extends `PreTrainedModel.__init__`, run before a model makes its layers: refuses models that ignore entmax."""
    original(model, *arguments, **options)
    if uses_entmax(model):
        require_settable(model)


def _post_init(original: Any, model: PreTrainedModel) -> None:
    """Extends `post_init`, the end of a constructor: checks a model, numbers its layers, makes modules of learned α."""
    if uses_entmax(model):
        require_interface(model)
        number_layers(model)
    elif getattr(model.config, "entmax_alpha", None) is not None:
        logger.warning_once(
            f"config.entmax_alpha is {model.config.entmax_alpha}, but attention is {model.config._attn_implementation}:"
            f' pass attn_implementation="{NAME}" to use it.'
        )
    # Make the parameters of a learned α, which `from_pretrained` then loads.
    for _, layer in attention_layers(model):
        if getattr(layer.config, "entmax_alpha_learnable", False) and not hasattr(layer, "entmax_alpha"):
            layer.entmax_alpha = _learned(layer, None)
    original(model)


def _set_attn_implementation(original: Any, model: PreTrainedModel, attn_implementation: Any, **options: Any) -> None:
    """Extends `PreTrainedModel.set_attn_implementation`: refuses models that cannot use entmax; numbers the layers."""
    everywhere = not isinstance(attn_implementation, dict)
    by_part = {"": attn_implementation} if everywhere else attn_implementation
    models = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    chosen = [getattr(model.config, part, None) if part else model.config for part in by_part if by_part[part] == NAME]
    for each in models:
        if (everywhere and chosen) or any(each.config is config for config in chosen):
            require_interface(each)
    if attn_implementation == NAME:
        require_attention(model)
    original(model, attn_implementation, **options)
    if everywhere:
        # Update encoders and decoders that have a copy of the configuration, which transformers 5.17 does not do.
        for each in models:
            if type(each.config) is type(model.config):
                each.config._attn_implementation = model.config._attn_implementation
    number_layers(model)


def _initialize_weights(original: Any, model: PreTrainedModel, module: Module, *arguments: Any) -> None:
    """Extends `PreTrainedModel._initialize_weights` by the parameters of a learned α."""
    # If a checkpoint has no α, transformers makes a tensor without values: initialise it.
    if type(module) is AlphaModule and not is_initialised(module) and not is_initialised(module.alpha_logit):
        module.reset_parameters()
    original(model, module, *arguments)


def _made(original: Any, kind: type[PreTrainedModel], *arguments: Any, **options: Any) -> Any:
    """Extends `_from_config` and `from_pretrained`: refuses a model without attention."""
    made = original(kind, *arguments, **options)
    model = made[0] if isinstance(made, tuple) else made
    # Check whole models only: transformers makes their parts, which may have no attention, without these options.
    if not options.keys().isdisjoint(("attn_implementation", "config")) and uses_entmax(model):
        require_attention(model)
    return made


EXTENDED: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "post_init": _post_init,
    "set_attn_implementation": _set_attn_implementation,
    "_initialize_weights": _initialize_weights,
    "_from_config": _made,
    "from_pretrained": _made,
}


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
        require_one_per_layer(values, config)
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
        >>> from transformers import GPT2Config, GPT2Model
        >>> from contmax.integrations.transformers import make_alpha_learnable, register
        >>> register()
        >>> model = GPT2Model(GPT2Config(n_embd=8, n_layer=2, n_head=2, attn_implementation="entmax"))
        >>> make_alpha_learnable(model)
        >>> sum("alpha_logit" in name for name, _ in model.named_parameters())
        2

    Reference: Correia, Niculae & Martins 2019.
    """
    layers = entmax_layers(model)
    number_layers(model)
    # Make all modules before changing the model, so that an error leaves the model unchanged.
    learned: list[Any] = [_learned(layer, alpha) for layer in layers]
    for layer, module in zip(layers, learned, strict=True):
        mark_initialised(module)
        layer.entmax_alpha = module
    for part in model.modules():
        if part in layers or (isinstance(part, PreTrainedModel) and any(x in layers for x in part.modules())):
            cast(PreTrainedConfig, part.config).entmax_alpha_learnable = True


def _learned(layer: Any, alpha: float | None) -> AlphaModule:
    """The module of a learned α per head, on the device of the layer; starts at `alpha` or at the layer's α."""
    start = given_alpha(layer) if alpha is None else alpha
    module = AlphaModule(start, learnable=True, num_heads=heads_of(layer))
    like = next(layer.parameters(), None)
    return module if like is None else module.to(like.device)


def _positive(alpha: float | Sequence[float], name: str) -> float | list[float]:
    """α as a float, or as a list with one per layer."""
    try:
        values = [float(alpha)] if isinstance(alpha, Real) else [float(a) for a in cast(Sequence[float], alpha)]
    except (TypeError, ValueError):  # a tensor without axes, or a text
        values = []
    if not values or not all(0 < value < float("inf") for value in values):
        raise ValueError(
            f"{name} must be positive, a number or one per layer; got {alpha!r}. 1 is softmax; 1.5 is a good choice."
        )
    return values[0] if isinstance(alpha, Real) else values


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
        set_alpha(context["model"], self.alpha_after(state.global_step / max(1, state.max_steps)))

    on_step_end = on_train_begin

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **context: Any
    ) -> None:
        """If the trainer has loaded the best weights, set α to the value at the step of these weights."""
        if args.load_best_model_at_end and state.best_global_step is not None:
            set_alpha(context["model"], self.alpha_after(state.best_global_step / max(1, state.max_steps)))

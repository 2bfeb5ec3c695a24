"""Settings that several tasks share, and settings checked against their types.

Without torch: ``contmax train TASK --help`` reads settings and nothing else. The message about a wrong value is for the
person who typed it.
"""

import ast
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from jsonargparse import ArgumentError, ArgumentParser
from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeInt,
    OpenUnitInterval,
    PositiveFloat,
    PositiveInt,
    restricted_number_type,
)

from contmax_lab.errors import LabError, nearest

AttentionKind = Literal["discrete", "continuous", "combined"]
Target = Literal["class", "number"]
Kind = Literal["logistic", "boosting", "gru-d", "mtan", "intervals"]
Weighing = Literal["continuous", "kernel", "kernel-dt", "scores"]
if TYPE_CHECKING:
    UpTo100 = int
    UpTo10000 = int
else:
    # The number of layers, of heads, and of basis functions along a side of an image.
    UpTo100 = restricted_number_type("UpTo100", int, [(">", 0), ("<=", 100)])
    # The number K of basis functions: a ridge fit solves a system of K equations.
    UpTo10000 = restricted_number_type("UpTo10000", int, [(">", 0), ("<=", 10_000)])


@dataclasses.dataclass(frozen=True)
class LabelledData:
    """Which examples there are.

    Args:
        train: training examples.
        validation: validation examples; by default some of the training examples are held out for it.
        test: test examples, used only with --test.
        target: what the labels are, classes (any number of them) or numbers.
        held_out: share of every class to hold out for validation where no validation data is given.
        split: random seed for that choice, and for the choice by limit.
        limit: use only this many examples of each file, chosen at random; 0 = all.
    """

    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    target: Target = "class"
    held_out: OpenUnitInterval = 0.2
    split: int = 0
    limit: NonNegativeInt = 0


@dataclasses.dataclass(frozen=True)
class AttentionModel:
    """The attention of a network.

    Args:
        attention: discrete = weights of single words, observations or cells; continuous = a density over the text, the
            time or the image; combined = both.
        alpha: 1 = softmax and Gaussian, 2 = sparsemax and truncated parabola; any other number above 0 works too.
        learn_alpha: learn alpha, between 1 and 2, separately for each head; training begins with the value of alpha.
        heads: number of attentions side by side.
    """

    attention: AttentionKind = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    heads: UpTo100 = 1


@dataclasses.dataclass(frozen=True)
class ChannelsModel:
    """A network for series whose channels are observed at times of their own.

    Args:
        kind: logistic and boosting see the last value of each channel, its count and the time since; gru-d and mtan
            are recurrent and attending baselines; intervals = attention to learned intervals of each channel.
        weighing: of intervals: continuous = the mean of a signal under a density; kernel = weights of single
            observations by a Gaussian of their time; kernel-dt = these times the span that each stands for; scores =
            weights by a small network of value and time.
        alpha: of the densities: 1 = Gaussian, 2 = truncated parabola; of the weights by scores 1 = softmax.
        learn_alpha: learn alpha, between 1 and 2, for each channel and interval; it begins at the value of alpha.
        heads: intervals of each channel.
        hidden_dim: channels of the recurrent or hidden layers.
        dropout: share of the inputs of the decision that is set to 0 in training.
        ridge: L2 penalty of the logistic regression that is solved first, per series.
        rate: of boosting: how much of each tree is added.
        leaves: of boosting: leaves of a tree.
        least_in_leaf: of boosting: training series in a leaf, at least.
    """

    kind: Kind = "intervals"
    weighing: Weighing = "continuous"
    alpha: PositiveFloat = 2.0
    learn_alpha: bool = False
    heads: UpTo100 = 3
    hidden_dim: PositiveInt = 64
    dropout: ClosedUnitInterval = 0.4
    ridge: PositiveFloat = 0.02
    rate: PositiveFloat = 0.05
    leaves: PositiveInt = 8
    least_in_leaf: PositiveInt = 20


_OF_KEY = re.compile(r'Parser key "(?P<key>[\w.]+)": (?P<text>.*)', re.DOTALL)
_OF_TYPE = re.compile(
    r"Not of type (?P<type>\w+): (?:(?P<number>\S+) does not conform .*|.*: (?P<word>'.*'))", re.DOTALL
)
_EXPECTED = re.compile(r"Expected a (?P<type>.+)\. Got value: (?P<value>.*)", re.DOTALL)
_UNION = re.compile(r"Does not validate against any .*Subtypes: \[(?P<types>.*)\] Errors: .*Given value: (?P<value>.*)")
_OF_UNION = re.compile(r"typing\.Literal\[[^\]]*\]|list\[[\w.]*?(?P<item>\w+)\]")
_LITERAL = "typing.Literal"
Settings = TypeVar("Settings")

_IN_WORDS = {
    "PositiveInt": "a whole number above 0",
    "UpTo100": "a whole number from 1 to 100",
    "UpTo10000": "a whole number from 1 to 10,000",
    "NonNegativeInt": "0 or a whole number above it",
    "PositiveFloat": "a number above 0",
    "NonNegativeFloat": "0 or a number above it",
    "ClosedUnitInterval": "a number from 0 to 1",
    "OpenUnitInterval": "a number between 0 and 1",
    "<class 'int'>": "a whole number",
    "<class 'float'>": "a number",
    "<class 'bool'>": "true or false",
}


def checked_settings(config: type[Settings], values: Mapping[str, Any], section: str) -> Settings:
    """Settings from a file that anybody may have changed.

    Args:
        config: a dataclass with the types of the settings.
        values: by name.
        section: what a complaint calls them, as in ``model.alpha``.

    Raises:
        LabError: if there is no such setting, or a value is not of its type.

    Example:
        >>> from contmax_lab.settings import AttentionModel
        >>> checked_settings(AttentionModel, {"alpha": 1.5}, "model").alpha
        1.5
        >>> checked_settings(AttentionModel, {"alpha": -3}, "model")
        Traceback (most recent call last):
        contmax_lab.errors.LabError: model.alpha must be a number above 0; got -3
    """
    known = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            raise LabError(f"there is no setting {section}.{name}{nearest(str(name), known)}")
        # The parser takes null for a setting that is not given.
        if value is None and getattr(config, name, None) is not None:
            raise LabError(f"{section}.{name} must not be null; leave it out for {getattr(config, name)}")
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(config, section)
    try:
        settings: Settings = parser.instantiate(parser.parse_object({section: dict(values)}))[section]
    except (ArgumentError, TypeError, ValueError) as error:
        raise LabError(in_words(str(error))) from None
    return settings


def in_words(complaint: str) -> str:
    """A complaint of jsonargparse as one sentence; one of a form that is not known keeps its own words.

    Example:
        >>> in_words('Parser key "training.epochs": Not of type PositiveInt: -3 does not conform to restriction v>0')
        'training.epochs must be a whole number above 0; got -3'
        >>> in_words('''Parser key "model.kind": Expected a typing.Literal['a', 'b']. Got value: c''')
        'model.kind must be a or b; got c'
        >>> types = "[typing.Literal['a', 'b'], list[jsonargparse.typing.PositiveFloat]]"
        >>> in_words(f'Parser key "k": Does not validate against any of Subtypes: {types} Errors: - Given value: c')
        'k must be a or b, or a list, each a number above 0; got c'
    """
    line = " ".join(complaint.split())
    of_key = _OF_KEY.fullmatch(line)
    if of_key is None:
        return line
    key, text = of_key["key"], of_key["text"]
    if found := _OF_TYPE.fullmatch(text):
        kind, value = found["type"], found["number"] or found["word"].strip("'")
    elif found := _EXPECTED.fullmatch(text):
        kind, value = found["type"], found["value"]
    elif (found := _UNION.fullmatch(text)) and (kinds := list(_OF_UNION.finditer(found["types"]))):
        lists = (f"a list, each {_kind_in_words(kind['item'])}" if kind["item"] else "" for kind in kinds)
        wanted = ", or ".join(told or _kind_in_words(kind[0]) for told, kind in zip(lists, kinds, strict=True))
        return f"{key} must be {wanted}; got {found['value']}"
    else:
        return f"{key}: {text}"
    return f"{key} must be {_kind_in_words(kind)}; got {value}"


def _kind_in_words(kind: str) -> str:
    if not kind.startswith(_LITERAL):
        return _IN_WORDS.get(kind, f"of type {kind}")
    *others, last = map(str, ast.literal_eval(kind.removeprefix(_LITERAL)))
    return f"{', '.join(others)} or {last}" if others else last

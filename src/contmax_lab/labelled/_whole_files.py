"""Answers to all inputs of a file: a batch at a time, in the order of the file, past inputs that cannot be read."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from contmax_lab.attention import Attended
from contmax_lab.contract import FileAnswer
from contmax_lab.data import BrokenRow, TableRow, read_rows
from contmax_lab.errors import LabError

Given = TypeVar("Given")
# Inputs that go through a network at once.
_TOGETHER = 64
# Of a density without an edge, the interval or the region that holds this share is told.
_SHARE = 0.9


@dataclasses.dataclass(frozen=True)
class Input(Generic[Given]):
    """One input of a file.

    Args:
        name: which one it is: column → text or number.
        given: what a model takes; None where it cannot be read.
        problem: why not.
    """

    name: dict[str, Any]
    given: Given | None = None
    problem: str = ""


def table_inputs(
    path: Path, column: str, keep: Sequence[str], read: Callable[[TableRow], Given]
) -> Iterator[Input[Given]]:
    """The inputs of a table with one in each row.

    Args:
        path: of the table.
        column: of the inputs.
        keep: further columns that name an input.
        read: row → input; raises a LabError where it cannot be read.
    """
    for row in read_rows(path, [column, *keep], "; name the column of the inputs by --column"):
        if isinstance(row, BrokenRow):
            yield Input({"line": row.place.line}, problem=f"line {row.place.line}: {row.text}")
            continue
        name = {"line": row.place.line, **{kept: row.fields[kept] for kept in keep}, column: row.fields[column]}
        try:
            yield Input(name, read(row))
        except LabError as error:
            yield Input(name, problem=str(error).removeprefix(f"{path}, "))


def answered(
    inputs: Iterable[Input[Given]], answer: Callable[[list[Given]], Sequence[dict[str, Any]]], most: int = _TOGETHER
) -> Iterator[FileAnswer]:
    """The answers to inputs, in their order.

    Args:
        inputs: of a file.
        answer: inputs → of each, column → text or number.
        most: inputs that are answered at once.

    Example:
        >>> inputs = [Input({"line": 2}, "good"), Input({"line": 3}, problem="no words")]
        >>> [found.told or found.problem for found in answered(inputs, lambda texts: [{"letters": 4}])]
        [{'letters': 4}, 'no words']
    """
    left = iter(inputs)
    while batch := list(itertools.islice(left, most)):
        given = [each.given for each in batch if each.given is not None]
        with torch.no_grad():
            told = iter(answer(given) if given else ())
        for each in batch:
            if each.given is None:
                yield FileAnswer(each.name, problem=each.problem)
            else:
                yield FileAnswer(each.name, next(told))


def told_of(output: Any, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Of each example: what the network says, with the probabilities of all classes, and the share that it attends to.

    Args:
        output: of a network: an `Answer`, or what has its `scores`, `inside` and `mask`.
        classes: their names; empty for numbers.
    """
    shares = (output.inside.sum(-1) / output.mask.sum(-1).clamp(min=1)).tolist()
    if not classes:
        return [
            {"prediction": number, "attended": share}
            for number, share in zip(output.scores.tolist(), shares, strict=True)
        ]
    told = []
    for row, share in zip(output.scores.softmax(-1).tolist(), shares, strict=True):
        best = max(range(len(row)), key=row.__getitem__)
        each = {f"p({name})": value for name, value in zip(classes, row, strict=True)}
        told.append({"prediction": classes[best], "probability": row[best], **each, "attended": share})
    return told


def numbered(name: str, head: int, heads: Sequence[Any]) -> str:
    """The column of a head: with its number, where there are several.

    Example:
        >>> numbered("from", 0, [None]), numbered("from", 1, [None, None])
        ('from', 'from, head 2')
    """
    return name if len(heads) == 1 else f"{name}, head {head + 1}"


def attended_interval(head: Attended) -> tuple[Tensor, Tensor] | None:
    """Ends of the interval outside which a density on the line is zero, (B,) each; None where a head has no density.

    Of a density without ends, those of the interval that holds 90 %, half of the rest on either side.
    """
    if head.density is None:
        return None
    low, high = (head.density.icdf(torch.tensor(share)) for share in (0.0, 1.0))
    rest = (1 - _SHARE) / 2
    inner, outer = (head.density.icdf(torch.tensor(share)) for share in (rest, 1 - rest))
    return torch.where(low.isfinite(), low, inner), torch.where(high.isfinite(), high, outer)


def attended_box(head: Attended) -> Tensor | None:
    """The box around the ellipse outside which a density in the plane is zero, (B, 4): top, left, bottom, right.

    Of a density without an edge, around the ellipse that holds 90 %. None where a head has no density.
    """
    density: Any = head.density
    if density is None:
        return None
    # Of a Gaussian in the plane the squared radius is exponential.
    radius = torch.where(density.radius.isfinite(), density.radius, (-2 * torch.tensor(1 - _SHARE).log()).sqrt())
    reach = radius.unsqueeze(-1) * density.scale_matrix.diagonal(dim1=-2, dim2=-1).sqrt()
    return torch.cat([density.loc - reach, density.loc + reach], -1)

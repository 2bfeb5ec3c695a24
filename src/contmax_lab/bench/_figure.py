"""One measured number and what it should be."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number at one row and column of a table, with the target it has to reach.

    Args:
        table: what was measured, in words; figures of one table are printed together.
        row: the size or kind of input.
        column: the operation.
        value: the number; None where it could not be measured (a peer that is not installed).
        at_most: upper bound to reach, or None.
        at_least: lower bound to reach, or None.
        details: how the number came about: repeats, extremes, seconds.

    Raises:
        ValueError: if both bounds are given.

    Example:
        >>> figure = Figure("time / torch.softmax", "(64, 280)", "sparsemax", 4.2, at_most=6.0)
        >>> figure.reached, figure.target
        (True, '≤ 6')
        >>> Figure("speed-up", "(64, 280)", "sparsemax", None, at_least=4.0).reached is None
        True
    """

    table: str
    row: str
    column: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(
                f"a figure has one target; got at_most={self.at_most} and at_least={self.at_least}. Pass one of them."
            )

    @property
    def target(self) -> str | None:
        """The target as it is printed, such as ``≤ 2.5``."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return None if self.at_least is None else f"≥ {self.at_least:g}"

    @property
    def reached(self) -> bool | None:
        """Whether the value meets the target (NaN does not); None without a value or without a target."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.at_most if self.at_most is not None else self.value >= (self.at_least or 0.0)

    def as_json(self) -> dict[str, Any]:
        """The figure for a JSON file. JSON has no NaN: there the value is null, but `reached` is false."""
        fields = dataclasses.asdict(self)
        if self.value is not None and not math.isfinite(self.value):
            fields["value"] = None
        return {**fields, "reached": self.reached}

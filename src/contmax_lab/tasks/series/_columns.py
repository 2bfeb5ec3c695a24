"""Which column of a table is what: named by the user, known by its usual name, or told by its place."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contmax_lab.data import Place, read_table
from contmax_lab.errors import LabError
from contmax_lab.tasks.series import SeriesData

# Role → names that leave no doubt, in small letters, with _ between words.
USUAL = {
    "series": ("id", "series", "series_id", "patient", "patient_id", "subject", "subject_id", "record_id", "recordid"),
    "time": ("time", "timestamp", "time_stamp", "datetime", "date_time", "date", "charttime"),
    "variable": ("variable", "variable_name", "parameter", "measurement", "feature", "channel"),
    "value": ("value", "valuenum", "measured_value", "reading"),
    "label": ("label", "class", "target", "outcome"),
}
_WIDE = (
    "a series id, a time, one channel or more and a label are needed, in this order or named by --data.series, "
    "--data.time and --data.label"
)
_LONG = (
    "a long table needs a series id, a time, a variable, a value and a label, named by --data.series, --data.time, "
    "--data.variable, --data.value and --data.label; or pass the labels as a table of their own, --data.labels FILE"
)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which column is what.

    Args:
        series: the id of a series.
        time: of the observation.
        label: of the series; perhaps in a table of its own.
        channels: what was observed: columns of a wide table, variables of a long one.
        static: what has one value in a series.
        variable, value: of a long table, what was observed and what came out; empty for a wide table.
        unused: columns of a long table that have no meaning here.
    """

    series: str
    time: str
    label: str
    channels: tuple[str, ...]
    static: tuple[str, ...] = ()
    variable: str = ""
    value: str = ""
    unused: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path, data: SeriesData) -> "Columns":
        """The columns of a table: those that the user has named, those with usual names, and the others by their place.

        By place the first two columns are series and time, and the last is the label. A table is long where a variable
        and a value are named, or have usual names.

        Raises:
            LabError: if a column is missing, or none is left for the channels.
        """
        named = {role: getattr(data, role) for role in USUAL if getattr(data, role)}
        # A table of labels has the column that --data.label names.
        here = [name for role, name in named.items() if data.labels is None or role != "label"]
        header = [*next(iter(read_table(path, here))).fields]
        place = Place(path, 1)
        if len({*named.values(), *data.static_names}) < len(named) + len(data.static_names):
            raise _unfit(place, header, "but two of the settings that name columns name one column")
        roles, free = _roles(place, header, named, data)
        static = data.static_names
        missing = [name for name in static if name not in header]
        if "variable" not in roles:
            if not free:
                raise _unfit(place, header, _WIDE)
            if missing and data.labels is None:
                raise _unfit(place, header, f"there is no column {missing[0]}, which --data.static names")
            return cls(**roles, channels=tuple(free), static=static)
        found = {row.text(roles["variable"]) for row in read_table(path)}
        if data.labels is None and (nowhere := [name for name in missing if name not in found]):
            told = f"there is neither a column nor a variable {nowhere[0]}, which --data.static names"
            raise _unfit(place, header, told)
        # Sorted, because lines may stand in any order.
        channels = tuple(sorted(found.difference(static)))
        if not channels:
            raise _unfit(place, header, f"{roles['variable']} names nothing but what --data.static names")
        return cls(**roles, channels=channels, static=static, unused=tuple(free))

    def needed(self, *, labelled: bool) -> list[str]:
        """The columns that every table must have; static ones may also be variables, or stand with the labels."""
        own = [self.variable, self.value] if self.variable else [*self.channels]
        return [self.series, self.time, *own, *([self.label] if labelled else [])]

    def __str__(self) -> str:
        roles = [(role, getattr(self, role)) for role in USUAL] + [("static", " ".join(self.static))]
        told = ", ".join(f"{role} {name}" for role, name in roles if name)
        return told + (f"; not used: {', '.join(self.unused)}" if self.unused else "")


def _unfit(place: Place, header: Sequence[str], told: str) -> LabError:
    return place.problem(f"got the columns {', '.join(header)}; {told}")


def _roles(
    place: Place, header: Sequence[str], named: Mapping[str, str], data: SeriesData
) -> tuple[dict[str, Any], list[str]]:
    """Role → column, and the columns without a role; a variable and a value are among the roles of a long table only.

    Raises:
        LabError: if a role is left without a column.
    """
    free = [name for name in header if name not in {*named.values(), *data.static_names}]
    # Usual names go before places: a column that is called time is no series id, wherever it stands.
    known = {role: name for role in USUAL if role not in named and (name := usual(role, free))}
    is_long = all(role in named or role in known for role in ("variable", "value"))
    if not is_long:
        if lone := named.get("variable") or named.get("value"):
            raise _unfit(place, header, f"--data.variable and --data.value go together, but only {lone} was named")
        known = {role: name for role, name in known.items() if role not in ("variable", "value")}
    roles: dict[str, Any] = {**known, **named}
    free = [name for name in free if name not in known.values()]
    for role in ("series", "time"):
        if role not in roles and free:
            roles[role] = free.pop(0)
    if data.labels is not None:
        roles.setdefault("label", "")
    elif "label" not in roles and free:
        roles["label"] = free.pop()
    if len(roles) < (5 if is_long else 3):
        raise _unfit(place, header, _LONG if is_long else _WIDE)
    return roles, free


def usual(role: str, names: Sequence[str]) -> str:
    """The first of the names that is usual for a role, or nothing.

    Example:
        >>> usual("series", ["Time", "Patient ID"]), usual("label", ["state"])
        ('Patient ID', '')
    """
    plain = {name: "_".join(name.lower().replace("-", " ").replace("_", " ").split()) for name in names}
    return next((name for name in names if plain[name] in USUAL[role]), "")


def label_columns(path: Path, columns: Columns, data: SeriesData) -> tuple[str, str]:
    """The columns of ids and labels in a table of labels.

    Raises:
        LabError: if there are none.
    """
    header = [*next(iter(read_table(path, [data.label] if data.label else []))).fields]
    series = columns.series if columns.series in header else usual("series", header) or header[0]
    free = [name for name in header if name not in (series, *data.static_names)]
    label = data.label or usual("label", free) or (free[-1] if free else "")
    if not label or label == series:
        needed = "a series id and a label are needed, in this order or named by --data.series and --data.label"
        raise Place(path, 1).problem(f"got the columns {', '.join(header)}; {needed}")
    return series, label

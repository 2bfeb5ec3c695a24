"""Values as files know them."""

import dataclasses
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses, restricted numbers, paths and dates as what JSON and YAML know.

    Example:
        >>> from pathlib import Path
        >>> plain({"sizes": (1, 2.5), "path": Path("data"), "none": None})
        {'sizes': [1, 2.5], 'path': 'data', 'none': None}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)  # without what a restricted type adds
    return None if value is None else str(value)

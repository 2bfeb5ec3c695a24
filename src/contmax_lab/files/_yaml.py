"""YAML as plain data."""

from pathlib import Path
from typing import Any

import yaml

from contmax_lab.errors import UsageError

# libyaml's parser takes a ninth of the time, where PyYAML was built with it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: mappings, lists, strings and numbers, nothing that runs.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None

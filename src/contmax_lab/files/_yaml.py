"""YAML as plain data."""

from pathlib import Path
from typing import Any

import yaml

from contmax_lab.errors import UsageError

# libyaml reads in a ninth of the time and writes in a quarter, where PyYAML was built with it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: mappings, lists, strings and numbers, nothing that runs.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"{path} cannot be read as YAML: {' '.join(str(error).split())}") from None


def yaml_text(content: Any) -> str:
    """Mappings, lists, strings and numbers as YAML, in the order that they have.

    Example:
        >>> print(yaml_text({"task": "vowels", "seed": 0}), end="")
        task: vowels
        seed: 0
    """
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))

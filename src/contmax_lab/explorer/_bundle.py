"""Modules of JavaScript as one script: a page that is opened from a file may not import any."""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_DECLARED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def bundled(entry: str, sources: Mapping[str, str]) -> str:
    """A module and all that it imports, in one scope, each after what it needs.

    Args:
        entry: name of the module to begin with.
        sources: name → text of every module. They import each other by name, as ``import { a } from "./b.js";``.

    Returns:
        One module without imports.

    Raises:
        ValueError: if two modules declare the same name, which would then mean the same thing.

    Example:
        >>> sources = {"a.js": 'import { b } from "./b.js";\\nb();\\n', "b.js": "export function b() {}\\n"}
        >>> print(bundled("a.js", sources))
        function b() {}
        b();
    """
    order = _in_order(entry, sources, [])
    owners: dict[str, str] = {}
    for name in order:
        for declared in _DECLARED.findall(sources[name]):
            if declared in owners:
                raise ValueError(f"{declared} is declared in {owners[declared]} and in {name}; rename one of them")
            owners[declared] = name
    return "".join(_EXPORT.sub("", _IMPORT.sub("", sources[name])) for name in order)


def _in_order(name: str, sources: Mapping[str, str], before: list[str]) -> list[str]:
    if name in before:
        return before
    for needed in _IMPORT.findall(sources[name]):
        before = _in_order(needed, sources, before)
    return [*before, name]

"""The public surface is a promise: this test fails when a name or a signature changes, so that it changes on purpose.

After a change that is meant, write the new surface with `python tests/test_api.py` and say so in the changelog.
"""

import importlib
import inspect
from pathlib import Path

import pytest

SNAPSHOT = Path(__file__).parent / "api.txt"
MODULES = [
    "contmax",
    "contmax.basis",
    "contmax.deformed",
    "contmax.densities",
    "contmax.densities.stats",
    "contmax.domains",
    "contmax.expectations",
    "contmax.integrations.entmax",
    "contmax.integrations.jax",
    "contmax.integrations.transformers",
    "contmax.losses",
    "contmax.nn",
    "contmax.output",
    "contmax.prediction",
    "contmax.signal",
    "contmax.viz",
]


def arguments(function) -> str:
    """The names, kinds and defaults of the parameters, without annotations."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def surface() -> list[str]:
    lines = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in dir(module):
            value = getattr(module, name)
            if name.startswith("_") or not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if not value.__module__.startswith(module_name.split(".integrations")[0]):
                continue
            lines.append(f"{module_name}.{name}{arguments(value)}")
    return sorted(lines)


def test_the_public_surface_is_as_promised():
    for package in ("jax", "transformers"):
        pytest.importorskip(package, reason=f"contmax.integrations needs {package}")
    expected = SNAPSHOT.read_text().splitlines()
    found = surface()
    missing, new = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    assert not missing, f"removed or changed: {missing}"
    assert not new, f"added or changed: {new}. Run `python tests/test_api.py` if this is meant."


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(surface()) + "\n")
    print(f"{len(surface())} names written to {SNAPSHOT.name}")

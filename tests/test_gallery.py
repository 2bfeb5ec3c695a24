"""The gallery of the documentation: short scripts that use public names which exist; building the pages runs them."""

import ast
import functools
import importlib
import io
import tokenize
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent.parent / "docs" / "gallery").glob("plot_*.py"))
MOST_LINES = 90
# What has its data in its wheel, or makes none; nothing of this loads from a network.
PACKAGES = {"contmax", "matplotlib", "numpy", "scipy", "sklearn", "torch", "vega_datasets"}
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


@functools.cache
def parsed(script):
    return ast.parse(script.read_text(encoding="utf-8"), str(script))


def lines_of_code(script):
    tokens = tokenize.generate_tokens(io.StringIO(script.read_text(encoding="utf-8")).readline)
    lines = {line for token in tokens if token.type not in LAYOUT for line in range(token.start[0], token.end[0] + 1)}
    return len(lines) - parsed(script).body[0].end_lineno


def dotted(node):
    """`contmax.nn.Entmax` of such an attribute; None of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else None
    return before and f"{before}.{node.attr}"


def names_of_contmax(script):
    """Full names of what a script takes from the library."""
    aliases, found = {}, set()
    for node in ast.walk(parsed(script)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("contmax"):
            aliases |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            aliases |= {name.name: name.name for name in node.names if name.name.startswith("contmax")}
    for node in ast.walk(parsed(script)):
        if isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node)):
            first, _, rest = name.partition(".")
            if first in aliases:
                found.add(f"{aliases[first]}.{rest}" if rest else aliases[first])
    return found | set(aliases.values())


def exists(name):
    thing, *rest = name.split(".")
    thing = importlib.import_module(thing)
    for place, part in enumerate(rest):
        if not hasattr(thing, part):
            try:
                importlib.import_module(".".join(["contmax", *rest[: place + 1]]))
            except ModuleNotFoundError:
                return False
        thing = getattr(thing, part)
    return True


def test_every_subject_has_a_script():
    assert {script.stem.removeprefix("plot_") for script in SCRIPTS} == {
        "conformal_sets",
        "densities",
        "entmax_transformer",
        "fit_misfit",
        "image_ellipse",
        "interval_regression",
        "irregular_series",
        "learned_alpha",
        "mixture",
        "sampling",
        "streaming_memory",
        "text_span",
    }


@every_script
def test_a_script_asks_a_question_and_draws(script):
    question, underline, *_ = ast.get_docstring(parsed(script)).splitlines()
    assert question.endswith("?")
    assert underline == "=" * len(question)
    text = script.read_text(encoding="utf-8")
    assert text.count("\n# %%\n") >= 2
    assert "plt.subplots(" in text
    assert lines_of_code(script) <= MOST_LINES


@every_script
def test_a_script_takes_public_names_that_exist_from_packages_without_a_network(script):
    names = names_of_contmax(script)
    assert any(name.count(".") for name in names)
    assert not [name for name in names if "._" in name]
    assert not [name for name in names if not exists(name)]
    imported = {
        (alias.name if isinstance(node, ast.Import) else node.module).partition(".")[0]
        for node in ast.walk(parsed(script))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= PACKAGES


@every_script
def test_a_script_with_chance_has_a_seed(script):
    text = script.read_text(encoding="utf-8")
    draws = any(word in text for word in ("torch.rand", "sample(", "nn.Linear", "random_state", "standard_normal"))
    assert not draws or "manual_seed(" in text or "default_rng(" in text


def test_a_name_that_is_gone_is_noticed():
    assert exists("contmax.nn.EntmaxAttention")
    assert exists("contmax.viz.LIGHT.settings")
    assert not exists("contmax.nn.EntmaxAttentio")
    assert not exists("contmax.nothing")

"""Shared by all tests: the run-time type checker, the golden values, Triton's interpreter where there is no GPU."""

import gc
import importlib.util
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# torch and numpy are imported where they are used: xdist's controller, which hands out the tests, needs neither.

# A compiled program runs once on a few numbers here. These settings let the C++ compiler neither optimise it nor look
# for vector instructions; each would take longer than the rest of a test.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_DEBUG_COMPILE", "1")
# Otherwise torch collects garbage after every program, among the objects of all programs before it.
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")

# Tests on a GPU also run where nothing but torch, triton, numpy and pytest is installed.
HAS_HYPOTHESIS = importlib.util.find_spec("hypothesis") is not None
HAS_TYPECHECKER = all(importlib.util.find_spec(name) for name in ("jaxtyping", "beartype"))

if HAS_HYPOTHESIS:
    from hypothesis import settings

    # Property tests draw the same examples on every run, and a slow machine is not a failure. `make fuzz` draws more.
    settings.register_profile("contmax", deadline=None, derandomize=True, max_examples=30)
    settings.load_profile("contmax")

# Compiled kernels live outside the checker: it rewrites functions, and their compilers read the source.
CHECKED = [
    "deformed",
    "maps",
    "attention",
    "densities",
    "domains",
    "prediction",
    "losses",
    "nn",
    "output",
    "basis",
    "signal",
    "expectations",
]

# Collecting doctests there imports transformers or JAX, which takes seconds; tests/integrations runs these doctests.
collect_ignore = ["src/contmax/integrations/transformers", "src/contmax/integrations/jax.py"]

# The longest test files, in the order in which they start.
LONG = (
    "tests/lab",
    "tests/kernels/test_compiled_code",
    "tests/integrations/test_transformers",
    "tests/docs/test_docs_pages",
    "tests/test_fuzz",
    "tests/prediction",
    "tests/kernels",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-typechecker", action="store_true", help="do not check jaxtyping annotations at run time"
    )
    parser.addoption("--plain", action="store_true", help="leave Triton's interpreter as it is")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # this is xdist's controller
    import torch

    # Triton reads this when it is imported, which torch does late.
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    if HAS_TYPECHECKER and not config.getoption("--without-typechecker"):
        import typechecker

        typechecker.install([f"contmax.{name}" for name in CHECKED])


def pytest_collection_finish() -> None:
    # None of the million imported objects is garbage. Tracing makes objects by the hundred thousand that die by
    # themselves: to look through them as often as usual takes a good part of its time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # With the long ones first no worker waits for another at the end.
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))
    if config.getoption("--without-typechecker") or not HAS_TYPECHECKER:
        return
    reason = "tracing does not see through the run-time type checker: pass --without-typechecker"
    for item in items:
        if item.get_closest_marker("graph"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    import torch

    # For a GPU that may come later torch would note how this line was reached, which takes most of a millisecond.
    (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)
    # Without bfloat16 instructions torch turns oneDNN off for the whole process at the first product of bfloat16.
    torch.backends.mkldnn.set_flags(True)


@pytest.fixture
def triton_takes_cpu_tensors(monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config) -> Iterator[None]:
    """Send CPU tensors through the kernels for the GPU, in Triton's interpreter."""
    import numpy as np

    pytest.importorskip("triton", reason="Triton's kernels need triton: pip install 'contmax[gpu]'")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a GPU the kernels are compiled, and cannot take CPU tensors")
    import quick_interpreter

    monkeypatch.setattr("contmax._backend.TRITON_DEVICES", {"cpu"})
    quick_interpreter.lose_nan(monkeypatch)
    if not pytestconfig.getoption("--plain"):
        quick_interpreter.make_quick(monkeypatch)
    # The interpreter computes with NumPy, which warns of NaN and overflow in branches that kernels do not select.
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice encountered", RuntimeWarning)
        yield


@pytest.fixture(scope="session")
def golden() -> dict[str, list[dict]]:
    """Reference values: function name → cases, each with ``tag``, ``inputs`` and ``outputs`` as decimal strings."""
    path = Path(__file__).parent / "tests" / "golden" / "golden.json"
    return {name: entry["cases"] for name, entry in json.loads(path.read_text())["functions"].items()}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser for all tests of a process."""
    from chromium import started

    with started() as running:
        yield running


@pytest.fixture(scope="session")
def left_pages(chromium: Any) -> dict[str, list]:
    """Options → the browser's pages that no test uses now."""
    return {}

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
from _pytest.runner import runtestprotocol

# torch and numpy are imported where they are used: the process that hands out tests to others needs neither.

# What torch.compile makes here runs once on a few numbers. The C++ compiler is asked neither to optimise it nor which
# vector instructions it knows, each of which takes longer than all else that a test does.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_DEBUG_COMPILE", "1")
# After every program torch would look for garbage in what all programs before it have left.
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
    "basis",
    "signal",
    "expectations",
]

# To look for doctests there, each process would import transformers, seconds of work: tests/integrations runs them.
collect_ignore = ["src/contmax/integrations/transformers"]

# The longest first.
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
    parser.addoption("--plain", action="store_true", help="replace nothing inside of torch and Triton to be quicker")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # other processes run the tests
    import torch

    # Triton decides when it is imported, which torch does late, whether kernels are compiled or interpreted.
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    if config.getoption("--without-typechecker"):
        if not config.getoption("--plain"):
            _trace_without_notes()
    elif HAS_TYPECHECKER:
        import typechecker

        typechecker.install([f"contmax.{name}" for name in CHECKED])


def _trace_without_notes() -> None:
    """Let torch trace without what nobody reads: where each node comes from, and Python code of every stage."""
    from torch._dynamo.symbolic_convert import InstructionTranslatorBase
    from torch.fx import Graph, GraphModule, _lazy_graph_module, config

    config.do_not_emit_stack_traces = True
    _lazy_graph_module._use_lazy_graph_module_flag = True
    # Frames inside of torch's modules are not noted at a node: so that none is.
    InstructionTranslatorBase.is_co_filename_from_nn_modules = lambda self: True
    # For logs that are not written.
    GraphModule.print_readable = lambda self, *arguments, **options: ""
    # torch looks at what it has made itself, after every step; the library makes no graphs.
    Graph.lint = lambda self: None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    # A million objects are imported, of which none is garbage: they are not looked through, neither now nor later.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Tracing makes objects by the hundred thousand that die by themselves: to look through them as often as usual
        # takes a good part of its time.
        gc.set_threshold(50_000, 20, 20)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    # pytest looks for garbage five times and Python at its end once more: the first time finds what there is.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Trainings and processes take seconds each, the rest milliseconds: with the long ones first, no worker waits.
    items.sort(key=lambda item: next((i for i, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))
    if config.getoption("--without-typechecker") or not HAS_TYPECHECKER:
        return
    reason = "tracing does not see through the run-time type checker: pass --without-typechecker"
    for item in items:
        if item.get_closest_marker("graph"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tell the process that hands out tests of their outcome alone: of each test it would get six messages."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    import torch

    # torch.manual_seed keeps a stack trace for every kind of device that has not started yet: a millisecond a test.
    torch.default_generator.manual_seed(0)
    # Where a processor has no instructions for bfloat16, torch gives up oneDNN for good at the first product of these.
    torch.backends.mkldnn.set_flags(True)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


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
    # NumPy, which the interpreter computes with, warns of what kernels do on purpose and select away.
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

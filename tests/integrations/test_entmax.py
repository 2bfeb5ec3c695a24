"""The drop-in against the package it replaces: its own tests, its names and signatures, its numbers."""

import inspect
import shutil
from pathlib import Path

import entmax as original
import entmax.activations
import entmax.losses
import entmax.root_finding
import pytest
import torch

from contmax.integrations import entmax as ours
from contmax.integrations.entmax import activations, losses, root_finding
from forked import run_apart

SUBMODULES = {
    "": (original, ours),
    "activations": (original.activations, activations),
    "losses": (original.losses, losses),
    "root_finding": (original.root_finding, root_finding),
}


def public_names(module) -> list[str]:
    """What projects import from it: its own classes and functions, and at the top those of its submodules."""
    homes = {module.__name__} if module is not original else {f"entmax.{name}" for name in SUBMODULES}
    return [
        name for name, thing in vars(module).items() if name[0] != "_" and getattr(thing, "__module__", None) in homes
    ]


EVERY_NAME = [(place, name) for place, (module, _) in SUBMODULES.items() for name in public_names(module)]


# 1. Its own test files, with our module in its place -----------------------------------------------------------------

PLUGIN = """
import functools, sys, torch
from contmax.integrations import entmax
from contmax.integrations.entmax import activations, losses, root_finding

sys.modules["entmax"] = entmax
for module in (activations, losses, root_finding):
    sys.modules["entmax." + module.__name__.rpartition(".")[2]] = module
# Along a direction drawn at random instead of along every axis.
torch.autograd.gradcheck = functools.partial(torch.autograd.gradcheck, fast_mode=True)
"""

GUARD = """
import entmax.losses

def test_the_module_under_test_is_ours():
    assert entmax.losses.EntmaxBisectLoss.__module__ == "contmax.integrations.entmax.losses"
"""


RUN = """
import contextlib, sys, pytest

sys.path.insert(0, ".")
with open("said", "w") as said, contextlib.redirect_stdout(said):
    print(repr(pytest.main({words})), "at the end")
"""


# Left out: they hold float32 to 1e-8 around zero, that is rows padded with −inf to the same last bit as shorter rows.
# `test_padding_with_minus_infinity_changes_nothing` below asks the same of float32 to its own precision.
LEFT_OUT = [
    "test_mask.py::test_mask[dtype0-func1]",
    "test_mask.py::test_mask[dtype0-func3]",
    "test_mask.py::test_mask[dtype0-entmax_bisect]",
    "test_mask.py::test_mask_alphas[1.25]",
    "test_mask.py::test_mask_alphas[1.5]",
    "test_mask.py::test_mask_alphas[1.75]",
]


def test_the_packages_own_tests_pass(tmp_path):
    shipped = sorted(Path(original.__file__).parent.glob("test_*.py"))
    assert len(shipped) == 4
    # Copied, because inside the package's folder they would be imported as parts of the package.
    for file in shipped:
        shutil.copy(file, tmp_path)
    (tmp_path / "in_its_place.py").write_text(PLUGIN)
    (tmp_path / "test_guard.py").write_text(GUARD)
    words = ["-q", "-p", "in_its_place", "-p", "no:cacheprovider", "-W", "error"]
    words += [f"--deselect={test}" for test in LEFT_OUT]
    run_apart(RUN.format(words=[*words, "."]), tmp_path)
    said = (tmp_path / "said").read_text()
    assert f"{128 - len(LEFT_OUT)} passed, {len(LEFT_OUT)} deselected" in said, said
    assert "<ExitCode.OK: 0> at the end" in said, said


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.75, 2.25])
def test_padding_with_minus_infinity_changes_nothing(alpha):
    scores = torch.randn(2, 6)
    scores[:, 3:] = -torch.inf
    p = ours.entmax_bisect(scores, alpha)
    assert p[:, 3:].eq(0).all()
    torch.testing.assert_close(p[:, :3], ours.entmax_bisect(scores[:, :3], alpha), rtol=1e-6, atol=1e-7)


# 2. The same names and signatures ------------------------------------------------------------------------------------


def parameters(function, skip: int = 0) -> list[tuple]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()][skip:]


@pytest.mark.parametrize(("place", "name"), EVERY_NAME)
def test_signatures_are_equal(place, name):
    theirs, mine = (getattr(module, name) for module in SUBMODULES[place])
    if name.endswith("Function"):
        # An autograd function is called through `apply`, with the arguments of `forward` behind the context.
        assert parameters(mine.apply) == parameters(theirs.forward, skip=1)
    else:
        assert parameters(mine) == parameters(theirs)
        assert inspect.isclass(mine) == inspect.isclass(theirs)


def test_no_public_name_was_missed():
    assert len(EVERY_NAME) == 55
    assert ours.__version__ == original.__version__


# 3. The same numbers -------------------------------------------------------------------------------------------------

MAPS = [
    ("sparsemax", {}),
    ("sparsemax", {"k": 3}),
    ("entmax15", {}),
    ("entmax15", {"k": 3}),
    ("sparsemax_bisect", {}),
    *[("entmax_bisect", {"alpha": alpha}) for alpha in (0.3, 0.8, 1.1, 1.5, 2, 2.5)],
    *[("normmax_bisect", {"alpha": alpha}) for alpha in (1.1, 1.5, 2, 5, 100)],
    *[("budget_bisect", {"budget": budget}) for budget in (0.5, 1, 2, 2.75, 5)],
]
LOSSES = [
    ("sparsemax_loss", {}),
    ("entmax15_loss", {"k": 4}),
    ("sparsemax_bisect_loss", {}),
    *[("entmax_bisect_loss", {"alpha": alpha}) for alpha in (0.7, 1.2, 1.5, 2.0, 2.4)],
    *[("normmax_bisect_loss", {"alpha": alpha}) for alpha in (1.2, 2.0, 6.0)],
]
MODULES = [
    "Sparsemax", "Entmax15", "SparsemaxBisect", "EntmaxBisect", "NormmaxBisect", "BudgetBisect",
]  # fmt: skip
LOSS_MODULES = ["SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss", "NormmaxBisectLoss"]


def value_and_gradients(function, *inputs, **kwargs):
    inputs = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    value = function(*inputs, **kwargs)
    cotangent = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).sin().view_as(value)
    differentiable = [x for x in inputs if x.requires_grad]
    return value.detach(), *torch.autograd.grad(value, differentiable, cotangent)


def assert_same(function: str, *inputs, rtol=1e-9, atol=1e-11, **kwargs):
    mine = value_and_gradients(getattr(ours, function), *inputs, **kwargs)
    theirs = value_and_gradients(getattr(original, function), *inputs, **kwargs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("name", "kwargs"), MAPS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_maps_agree_with_the_original(name, kwargs, dim, scale):
    scores = scale * torch.randn(7, 9, 6, dtype=torch.float64)
    assert_same(name, scores, dim=dim, **kwargs)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_learned_alpha_agrees_with_the_original(dim):
    scores = torch.randn(4, 5, 6, dtype=torch.float64)
    shape = [4, 5, 6]
    shape[dim] = 1
    alpha = 0.3 + 2 * torch.rand(shape, dtype=torch.float64)
    assert_same("entmax_bisect", scores, alpha, dim=dim, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(("name", "kwargs"), LOSSES)
def test_losses_agree_with_the_original(name, kwargs):
    scores, target = 2 * torch.randn(20, 8, dtype=torch.float64), torch.randint(0, 8, (20,))
    assert_same(name, scores, target, **kwargs)


@pytest.mark.parametrize("name", MODULES)
def test_modules_agree_with_the_original(name):
    scores = torch.randn(5, 7, dtype=torch.float64)
    kwargs = {"n_iter": 60} if name == "SparsemaxBisect" else {}
    torch.testing.assert_close(getattr(ours, name)(**kwargs)(scores), getattr(original, name)(**kwargs)(scores))


@pytest.mark.parametrize("name", LOSS_MODULES)
@pytest.mark.parametrize("reduction", ["elementwise_mean", "sum", "none"])
@pytest.mark.parametrize("ignore_index", [-100, 2])
def test_loss_modules_agree_with_the_original(name, reduction, ignore_index):
    scores, target = torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 6, (20,))
    arguments = {"reduction": reduction, "ignore_index": ignore_index}
    mine = value_and_gradients(getattr(ours, name)(**arguments), scores, target)
    theirs = value_and_gradients(getattr(original, name)(**arguments), scores, target)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in public_names(original.losses) if name.endswith("Function")])
def test_autograd_functions_of_losses_can_be_called(name):
    scores, target = torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 5, (6,))
    theirs, mine = getattr(original.losses, name), getattr(losses, name)
    torch.testing.assert_close(mine.apply(scores, target), theirs.apply(scores, target))


@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place, name in EVERY_NAME if place in ("activations", "root_finding") and "Function" in name],
)
def test_autograd_functions_of_maps_can_be_called(place, name):
    scores = torch.randn(6, 5, dtype=torch.float64)
    theirs, mine = (getattr(module, name) for module in SUBMODULES[place])
    torch.testing.assert_close(mine.apply(scores), theirs.apply(scores))


@pytest.mark.parametrize("name", ["_sparsemax_threshold_and_support", "_entmax_threshold_and_support"])
@pytest.mark.parametrize("dim", [0, 1])
def test_thresholds_and_support_sizes_agree_with_the_original(name, dim):
    scores = 0.5 * torch.randn(6, 5, dtype=torch.float64)
    for mine, theirs in zip(
        getattr(activations, name)(scores, dim), getattr(original.activations, name)(scores, dim), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_arguments_without_effect_are_accepted_by_position():
    scores = torch.randn(3, 5)
    torch.testing.assert_close(ours.entmax_bisect(scores, 1.3, -1, 7, False), ours.entmax_bisect(scores, 1.3))
    torch.testing.assert_close(ours.sparsemax_bisect(scores, -1, 3, False), ours.sparsemax(scores, -1, 2))
    # An integer tensor is a valid α there, as is a budget.
    torch.testing.assert_close(ours.entmax_bisect(scores, torch.tensor(2)), ours.sparsemax(scores))
    torch.testing.assert_close(ours.budget_bisect(scores, torch.tensor(2)), ours.budget_bisect(scores, 2))


@pytest.mark.parametrize("name", ["entmax_bisect", "normmax_bisect", "budget_bisect"])
def test_parameters_keep_their_precision_beside_bfloat16_scores(name):
    scores, parameter = torch.randn(8, 50).bfloat16(), torch.tensor(1.3)
    function = getattr(ours, name)
    exact = function(scores.float(), parameter).bfloat16()
    torch.testing.assert_close(function(scores, parameter), exact, rtol=0, atol=0)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ValueError, match="elementwise_mean"):
        ours.SparsemaxLoss(reduction="mean")


def test_parameters_of_modules_are_learned():
    for module in (ours.EntmaxBisect, ours.NormmaxBisect, ours.EntmaxBisectLoss, ours.NormmaxBisectLoss):
        assert [name for name, _ in module(torch.nn.Parameter(torch.tensor(1.7))).named_parameters()] == ["alpha"]

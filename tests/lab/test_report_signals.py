"""Reports say how much of the features the bases of continuous attention follow."""

import re
import types

import numpy as np
import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.nn import CombinedAttention, ContinuousAttention, DiscreteAttention, MultiheadContinuousAttention
from contmax_lab.cli import main
from contmax_lab.registry import find_task, load_recipe, open_trained
from contmax_lab.report import signals_note, watched_signals
from contmax_lab.runs import Run
from contmax_lab.training import train

LINE = GaussianBasis.linspace(5, scale=0.2)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def ridge_share(values, where, basis, penalty=0.01):
    """Of one sequence, with numpy: 1 − what the ridge fit misses / what the mean misses."""
    functions, h = basis(where).double().numpy(), values.double().numpy()
    fit = functions @ np.linalg.solve(functions.T @ functions + penalty * np.eye(functions.shape[1]), functions.T @ h)
    return 1 - ((h - fit) ** 2).sum() / ((h - h.mean(0)) ** 2).sum()


def quick(name, folder):
    few = ["--training.epochs=1", "--training.batch_size=0", "--model.hidden_dim=8", "--model.functions=4"]
    train(load_recipe(name, few), Run(folder))
    return str(folder)


@pytest.mark.usefixtures("sketched")
def test_the_report_tells_what_the_basis_explains(tmp_path):
    folders = [quick(f"vowels/{kind}-sparsemax", tmp_path / kind) for kind in ("continuous", "discrete")]
    page = tmp_path / "out" / "r.html"
    main(["report", *folders, "--output", str(page), "--examples", "1", "5", "9"])
    told = re.search(r"The basis explains (-?\d+) % of the variance of the features", page.read_text(encoding="utf-8"))
    trained = open_trained(folders[0])
    found, drawn = [], trained.splits.valid
    attend = trained.model.attention.heads[0].attend

    def note(_, given, named):
        found.append((given[0][0], named["positions"][0]))

    attend.register_forward_pre_hook(note, with_kwargs=True)
    for place in (0, 4, 8):
        with torch.no_grad():
            trained.model(trained.task.batch(drawn, [place]))
    shares = [ridge_share(h, where, attend.basis) for h, where in found]
    assert int(told[1]) == round(100 * sum(shares) / 3)


def test_drawn_places_count_once_each_and_as_they_are():
    task, kinds = find_task("places"), ("combined", "multihead", "discrete")
    few = ["--model.hidden_dim=8", "--model.functions=4", "--data.valid_places=1"]
    recipes = [load_recipe("places/utterance", [*few, f"--model.attention={kind}"]) for kind in kinds]
    splits = task.load(recipes[0].data, 0)
    counts = {}
    for kind, recipe in zip(kinds, recipes, strict=True):
        model = task.build(recipe.model, splits).eval()
        run = types.SimpleNamespace(recipe=recipe, task=task, splits=splits, model=model, label=kind)
        with watched_signals(model) as shares:
            task.figures([run], [2, 5])
        counts[kind] = len(shares)
    assert counts == {"combined": 2, "multihead": 2, "discrete": 0}


# -- what is watched ---------------------------------------------------------------------------------------------------

MODULES = [
    ContinuousAttention(LINE, embed_dim=3),
    CombinedAttention(DiscreteAttention(3), LINE),
    CombinedAttention(None, LINE, head=contmax.nn.GateHead(3)),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_the_share_is_that_of_the_signal(module):
    values, positions = torch.randn(2, 20, 3), torch.rand(2, 20).sort().values
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    module.eval()  # in training some values are hidden
    with watched_signals(module) as shares:
        module(values, positions=positions, mask=mask)
    expected = [ridge_share(values[0], positions[0], LINE), ridge_share(values[1, :13], positions[1, :13], LINE)]
    assert shares == pytest.approx(expected, abs=1e-5)
    module(values)
    assert len(shares) == 2


@pytest.mark.parametrize("given", [True, False])
def test_grids_of_the_call_and_of_the_module(given):
    plane = MultivariateGaussianBasis.grid(3, scale=0.3)
    own, called = (None, {"grid": (4, 5)}) if given else ((4, 5), {})
    values = torch.randn(1, 20, 3)
    where = torch.cartesian_prod((torch.arange(4) + 0.5) / 4, (torch.arange(5) + 0.5) / 5)
    for module, arguments in (
        (ContinuousAttention(plane, embed_dim=3, grid=own), (values,)),
        (MultiheadContinuousAttention(3, 1, plane, grid=own), (torch.randn(1, 2, 3), values)),
    ):
        with watched_signals(torch.nn.Sequential(module).eval()) as shares:
            module(*arguments, **called)
        assert shares == pytest.approx([ridge_share(values[0], where, plane)], abs=1e-5)


def test_runs_are_told_apart_and_those_without_signals_are_left_out():
    note = signals_note([("gates", [0.9, 0.94]), ("softmax", []), ("both", [0.5])])
    assert note.startswith("The basis explains 92 % (gates), 50 % (both) of the variance of the features")
    assert signals_note([("softmax", [])]) == signals_note([]) == ""

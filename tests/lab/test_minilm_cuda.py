"""On a GPU, where fused kernels compute attention, a converted model trains in bfloat16, and measures are the same."""

import pytest
import torch

from cuda_checks import DEVICE

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "yaml", "tokenizers", "transformers"):
    pytest.importorskip(package)

from noisy import interrupt  # noqa: E402, below what may be missing
from tiny_bert import tiny_recipe  # noqa: E402

from contmax_lab.errors import LabError  # noqa: E402
from contmax_lab.registry import shipped_recipes  # noqa: E402
from contmax_lab.runs import Run  # noqa: E402
from contmax_lab.tasks.minilm import MinilmModel  # noqa: E402
from contmax_lab.tasks.minilm._data import load  # noqa: E402
from contmax_lab.tasks.minilm._model import Judge  # noqa: E402
from contmax_lab.tasks.minilm._task import TASK  # noqa: E402
from contmax_lab.training import train  # noqa: E402

VARIANTS = [name.partition("/")[2] for name in shipped_recipes() if name.startswith("minilm/")]


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_trains_and_goes_on(tmp_path, monkeypatch, variant):
    recipe = tiny_recipe(tmp_path, variant, "--training.precision=bf16", "--training.checkpoint_seconds=0")
    run = Run(tmp_path / "run")
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        with pytest.raises(LabError, match="enough"):
            train(recipe, run, resume=True)
    found = train(recipe, run, resume=True, test=True)["test"]
    assert (found["zeros"] > 0.05) == (variant != "softmax")


@torch.no_grad()
def test_measures_are_those_of_the_cpu(tmp_path):
    splits = load(tiny_recipe(tmp_path, "rising").data)
    batch = TASK.batch(splits.test, range(30))
    torch.manual_seed(0)
    model = Judge(splits.info["pretrained"], MinilmModel(rise=0.0), 100).eval()
    here = TASK.measures(model(batch), batch)
    there = {name: values.to(DEVICE) for name, values in batch.items()}
    found = {name: values.cpu() for name, values in TASK.measures(model.to(DEVICE)(there), there).items()}
    for name, values in here.items():
        # A weight of 1e-7 may be zero on one of them; a token that receives as much as another may be deleted or not.
        wrong = (found[name].double() - values.double()).abs() > 1e-2 * values.double().abs() + 1e-3
        assert wrong.double().mean() < 0.1, name

"""On a GPU the steps of an ensemble are recorded: the weights are those of steps one by one."""

import pytest
import torch

from cuda_checks import ON_GPU

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "yaml"):
    pytest.importorskip(package)

from weather import tiny_recipe  # noqa: E402, below what may be missing

from contmax_lab.training import _ensemble  # noqa: E402

FULL = ("--training.batch_size=0", "--training.epochs=24", "--training.evaluate_every=8", "--training.device=auto")


def trained(folder, *overrides, stop_at=24):
    recipes = [tiny_recipe(folder, *FULL, *overrides, f"--data.split={place}") for place in range(2)]
    ensemble = _ensemble._Ensemble(recipes)
    while ensemble.step < stop_at:
        ensemble.advance()
    return ensemble


def weights(ensemble):
    return {name: tensor.detach().cpu() for name, tensor in ensemble.parameters.items()}


@pytest.mark.parametrize("family", ["midpoint", "gaussian-sigma", "parabola", "triangular", "two-networks"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_recorded_steps_are_the_steps(tmp_path, monkeypatch, family, schedule):
    overrides = (f"--model.family={family}", "--model.dropout=0.3", f"--training.schedule={schedule}")
    recorded = trained(tmp_path, *overrides)
    if ON_GPU:
        assert recorded._take_step._graph is not None
    monkeypatch.setattr(_ensemble, "RecordedStep", lambda step: step)
    torch.testing.assert_close(weights(recorded), weights(trained(tmp_path, *overrides)), rtol=1e-3, atol=1e-5)


def test_a_recorded_training_goes_on_from_a_checkpoint(tmp_path):
    whole, half = trained(tmp_path, "--model.dropout=0.3"), trained(tmp_path, "--model.dropout=0.3", stop_at=8)
    later = trained(tmp_path, "--model.dropout=0.3", stop_at=0)
    later.restore(half.checkpoint(metrics_bytes=[0] * len(half.recipes)))
    while later.step < 24:
        later.advance()
    torch.testing.assert_close(weights(later), weights(whole), rtol=1e-3, atol=1e-5)

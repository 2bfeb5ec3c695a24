"""A training on a GPU goes on after an interruption as if there had been none."""

import pytest
import torch

from cuda_checks import DEVICE

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "yaml"):
    pytest.importorskip(package)

from noisy import Noisy, interrupt, recipe  # noqa: E402, below what may be missing

from contmax_lab.errors import LabError  # noqa: E402
from contmax_lab.runs import Run  # noqa: E402
from contmax_lab.training import _learner, train  # noqa: E402


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_it_goes_on_with_the_same_chance(tmp_path, monkeypatch, precision, workers):
    chosen = recipe(device="auto", precision=precision, workers=workers, epochs=6, schedule="plateau", accumulate=2)
    devices = set()
    loss = Noisy.loss

    def watched(self, output, batch):
        devices.add(output.device.type)
        return loss(self, output, batch)

    monkeypatch.setattr(Noisy, "loss", watched)
    train(chosen, whole := Run(tmp_path / "whole"))
    run = Run(tmp_path / "run")
    for stop in (3, 5, 17):
        with monkeypatch.context() as patch:
            interrupt(patch, stop)
            with pytest.raises(LabError, match="enough"):
                train(chosen, run, resume=True)
        assert max(path.name for path in run.checkpoints.iterdir()) == f"step-{stop:09d}.safetensors"
    train(chosen, run, resume=True)
    assert devices == {DEVICE}
    # Sums on a GPU may differ in the last bits from one run to the next; other dropout would differ in the first.
    assert _numbers(run) == pytest.approx(_numbers(whole), rel=1e-5)


def test_other_chance_is_seen(tmp_path, monkeypatch):
    """What the comparison above would miss if it were too coarse: the same training with other dropout on the GPU."""
    chosen = recipe(device="auto", epochs=6)
    train(chosen, whole := Run(tmp_path / "whole"))
    monkeypatch.setattr(_learner, "seed_everything", lambda seed, device: torch.manual_seed(seed + 1))
    train(chosen, other := Run(tmp_path / "other"))
    assert _numbers(other) != pytest.approx(_numbers(whole), rel=1e-5)


def _numbers(run):
    return [number for record in run.history() for part in ("train", "valid") for number in record[part].values()]

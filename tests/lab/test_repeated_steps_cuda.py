"""On a GPU the steps of a training are recorded for each shape of its batches: the weights are those of plain steps."""

import pytest
import torch

from cuda_checks import ON_GPU

pytestmark = pytest.mark.gpu

for package in ("accelerate", "jsonargparse", "safetensors", "yaml"):
    pytest.importorskip(package)

from accelerate import Accelerator  # noqa: E402, below what may be missing

from contmax_lab import recorded  # noqa: E402
from contmax_lab.contract import Splits  # noqa: E402
from contmax_lab.registry import load_recipe  # noqa: E402
from contmax_lab.tasks.translation._data import Pairs, Sentences  # noqa: E402
from contmax_lab.training import _learner  # noqa: E402
from contmax_lab.training._batches import Order, Plan  # noqa: E402
from contmax_lab.training._learner import Learner  # noqa: E402

SIZES = ("embedding_dim=8", "encoder_dim=8", "decoder_dim=8", "feedforward_dim=8", "layers=1", "heads=2")
NETWORKS = {
    "softmax": ("multi30k", "attention=discrete", "alpha=1"),
    "sum of both": ("multi30k", "attention=combined", "alpha=2"),
    "parabola": ("multi30k", "attention=continuous", "alpha=2"),
    "transformer": ("transformer", "alpha=1.5"),
}
STEPS = 24


def pairs():
    """Sentences of two lengths."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 6]).repeat(12)
    starts = lengths.cumsum(0) - lengths
    sides = [Sentences(torch.randint(4, 20, (int(lengths.sum()),)), starts, lengths) for _ in range(2)]
    return Pairs(*sides, torch.arange(len(lengths)))


def taught(network, *overrides):
    variant, *model = NETWORKS[network]
    changes = [f"--model.{change}" for change in (*SIZES, *model)]
    recipe = load_recipe(f"translation/{variant}", [*changes, "--training.batch_tokens=28", *overrides])
    examples = pairs()
    learner = Learner(recipe, Splits(examples, examples, examples, {"vocabulary": 20}), Accelerator(cpu=not ON_GPU))
    learner.model.train()
    plan = Plan(recipe.training, 0, len(examples), recipe.task.lengths(examples))
    batches = [order for epoch in range(9) for order in plan.epoch(epoch)][:STEPS]
    for number, indices in enumerate(batches):
        learner.step(learner.loader[Order(number, indices)], number, STEPS)
    return learner


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("overrides", [(), ("--training.accumulate=2",), ("--training.precision=bf16",)])
def test_steps_that_are_played_teach_what_plain_steps_teach(monkeypatch, network, overrides):
    repeated = taught(network, *overrides)
    if ON_GPU:
        assert all(part._step._graph is not None for part in repeated._repeated._recorded.values())
        assert len(repeated._repeated._recorded) >= 2
    monkeypatch.setattr(recorded, "_VISITS", STEPS + 1)
    plain = taught(network, *overrides)
    # The dropout is the same; sums may differ in their last bits.
    tolerance = 3e-2 if overrides and "bf16" in overrides[0] else 2e-4
    torch.testing.assert_close(repeated.weights(), plain.weights(), rtol=tolerance, atol=tolerance)
    assert repeated.sums() == pytest.approx(plain.sums(), rel=tolerance)


@pytest.mark.skipif(not ON_GPU, reason="recordings of a GPU")
def test_a_result_stays_when_the_next_part_is_played():
    parts = recorded.RepeatedParts(lambda batch: batch["x"].sum().double().reshape(1), "cuda")
    found = [parts({"x": torch.full((2,), value)}) for value in range(8)]
    (of_part,) = parts._recorded.values()
    assert of_part._step._graph is not None
    assert [int(result) for result in found] == list(range(0, 16, 2))


@pytest.mark.skipif(not ON_GPU, reason="on a CPU chance comes with the batch")
def test_other_chance_is_seen(monkeypatch):
    """What the comparison above would miss if it were too coarse: the same training with other dropout."""
    first, seed_for = taught("softmax"), _learner.seed_for
    monkeypatch.setattr(_learner, "seed_for", lambda seed, *of: seed_for(seed + ("step" in of), *of))
    assert taught("softmax").sums() != pytest.approx(first.sums(), rel=2e-4)


def test_nothing_is_recorded_where_it_is_not_wanted():
    assert taught("softmax", "--training.record=false")._repeated is None


@pytest.mark.skipif(not ON_GPU, reason="the memory of a GPU")
def test_without_memory_for_recordings_steps_stay_plain(monkeypatch):
    learn, tried = _learner.Learner._learn_from, []

    def large(self, batch, counted=1.0):
        result = learn(self, batch, counted)
        if torch.cuda.is_current_stream_capturing():
            tried.append(torch.cuda.get_device_properties(0).total_memory)
            torch.empty(2 * tried[-1], dtype=torch.uint8, device="cuda")
        return result

    plain = taught("softmax", "--training.record=false")
    monkeypatch.setattr(_learner.Learner, "_learn_from", large)
    learner = taught("softmax")
    assert (len(tried), learner._repeated._most) == (1, 0)
    assert learner.sums() == pytest.approx(plain.sums(), rel=2e-4)

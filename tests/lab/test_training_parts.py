"""The parts of the loop on their own: batches, schedule, seeds, checkpoints, precision, pages."""

import dataclasses
import hashlib
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from processes import together, train_and_return
from weather import tiny_recipe

from contmax_lab.contract import Figure, Section, TrainingConfig
from contmax_lab.data import non_overlapping_holdout
from contmax_lab.drawing import new_axes
from contmax_lab.errors import LabError
from contmax_lab.files import Checkpoint, read_checkpoint, write_checkpoint
from contmax_lab.registry import find_task
from contmax_lab.report import write_page
from contmax_lab.runs import Run
from contmax_lab.training import Schedule, epoch_batches, evaluate, learning_rate, seed_for, share, token_batches, train
from forked import process_server

# -- batches -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 3), st.booleans())
def test_every_example_is_in_one_batch_of_every_epoch(count, size, epoch, by_length):
    lengths = [(37 * i) % 101 for i in range(count)] if by_length else None
    batches = epoch_batches(count, size, seed=1, epoch=epoch, lengths=lengths)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert len(batches) == (math.ceil(count / size) if size else 1)
    assert all(len(batch) <= (size or count) for batch in batches)


@given(st.lists(st.integers(), max_size=20), st.integers(1, 5))
def test_processes_share_a_batch_without_rest_or_overlap(batch, world):
    shares = [share(batch, rank, world) for rank in range(world)]
    assert sorted(index for part in shares for index in part) == sorted(batch)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_order_is_a_function_of_seed_and_epoch():
    def order(**changes):
        return epoch_batches(100, 7, **{"seed": 0, "epoch": 0, **changes})

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=1)


def test_batches_by_length_hardly_pad():
    lengths = torch.randint(1, 400, (5000,)).tolist()

    def padding(batches):
        return sum(max(lengths[i] for i in batch) * len(batch) for batch in batches) / sum(lengths) - 1

    assert padding(epoch_batches(5000, 32, 0, 0)) > 0.5
    assert padding(epoch_batches(5000, 32, 0, 0, lengths)) < 0.05


@given(st.lists(st.integers(0, 60), max_size=200), st.integers(1, 100))
def test_batches_by_tokens_hold_every_example_once_and_no_more_tokens_than_allowed(lengths, tokens):
    epochs = [token_batches(lengths, tokens, seed=3, epoch=epoch) for epoch in range(3)]
    assert len({len(batches) for batches in epochs}) == 1
    for batches in epochs:
        assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
        assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= tokens for batch in batches)


def test_batches_by_tokens_are_full_and_differ_between_epochs():
    lengths = torch.randint(1, 40, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    first, second = (token_batches(lengths, 400, 0, epoch) for epoch in (0, 1))
    assert first == token_batches(lengths, 400, 0, 0) != second
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}
    assert sum(lengths) / (400 * len(first)) > 0.9


def test_seeds_of_steps_and_processes_differ():
    seeds = {seed_for(seed, "step", step, rank) for seed in range(3) for step in range(50) for rank in range(3)}
    assert len(seeds) == 3 * 50 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


# -- schedule ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "inverse_sqrt"])
def test_learning_rates_rise_then_fall_and_stay_positive(schedule):
    config = TrainingConfig(learning_rate=0.5, schedule=schedule, warmup_steps=10)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.05 * (step + 1) for step in range(10)])
    assert max(rates) == pytest.approx(0.5)
    assert all(rate > 0 for rate in rates)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))
    assert (rates[-1] == 0.5) == (schedule == "constant")


def test_schedules_that_remember():
    by_epoch = Schedule(TrainingConfig(learning_rate=1.0, schedule="epochs", decay=0.1, decay_every=2, warmup_steps=2))
    rates = []
    for epoch in range(1, 6):
        rates.append(by_epoch.rate(epoch - 1, 5))
        by_epoch.epoch_done(epoch)
        by_epoch.evaluated(False)
    assert rates == pytest.approx([0.5, 1, 0.1, 0.1, 0.01])
    milestones = Schedule(TrainingConfig(learning_rate=1.0, schedule="milestones", decay=0.1, decay_at=[1, 3]))
    rates = []
    for epoch in range(1, 6):
        rates.append(milestones.rate(epoch - 1, 5))
        milestones.epoch_done(epoch)
    assert rates == pytest.approx([1, 0.1, 0.1, 0.01, 0.01])
    plateau = Schedule(TrainingConfig(learning_rate=1.0, schedule="plateau", decay=0.1, decay_every=2))
    rates = []
    for is_best in (True, False, True, False, False, False, False):
        plateau.epoch_done(2)
        plateau.evaluated(is_best)
        rates.append(plateau.rate(0, 1))
    assert rates == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01])
    resumed = Schedule(plateau.config)
    resumed.load_state(plateau.state())
    assert resumed == plateau


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimizers_with_clipping_and_decay_learn(tmp_path, name):
    options = [f"--training.optimizer={name}", "--training.clip_norm=1", "--training.weight_decay=0.001"]
    recipe = tiny_recipe(tmp_path, "--training.learning_rate=0.05", "--model.family=midpoint", *options)
    train(recipe, Run(tmp_path / "run"))
    losses = [record["train"]["loss"] for record in Run(tmp_path / "run").history()]
    assert losses[-1] < 0.95 * losses[0]


def test_training_stops_early_and_keeps_the_best_weights(tmp_path):
    options = [
        "--training.learning_rate=1",
        "--training.patience=3",
        "--training.epochs=500",
        "--model.family=midpoint",
    ]
    results = train(tiny_recipe(tmp_path, *options), Run(tmp_path / "run"))
    history = Run(tmp_path / "run").history()
    assert len(history) < 500
    assert results["best_epoch"] == results["epochs"] - 3
    best = min(history, key=lambda record: record["valid"]["loss"])
    assert best["epoch"] == results["best_epoch"]
    assert results["valid"] == best["valid"]


def test_of_ties_the_first_is_the_best_and_the_rest_are_without_progress(tmp_path):
    # A step of 1e-30 changes no weight, so that every evaluation gives the same.
    options = ["--training.learning_rate=1e-30", "--training.epochs=9", "--training.patience=2", "--model.dropout=0"]
    results = train(tiny_recipe(tmp_path, *options), Run(tmp_path / "run"))
    assert (results["best_epoch"], results["epochs"]) == (1, 3)


@pytest.mark.parametrize("batch_size", [32, 0])
def test_losses_are_means_over_all_epochs_since_the_last_evaluation(tmp_path, batch_size):
    def history(every):
        options = [f"--training.evaluate_every={every}", "--training.epochs=5", f"--training.batch_size={batch_size}"]
        run = Run(tmp_path / f"every-{every}")
        train(tiny_recipe(tmp_path, *options), run)
        return run.history()

    each, second = history(1), history(2)
    assert [record["epoch"] for record in second] == [2, 4, 5]
    for part, epochs in zip(second, ([0, 1], [2, 3], [4]), strict=True):
        for name in ("loss", "gradient_norm"):
            mean = sum(each[epoch]["train"][name] for epoch in epochs) / len(epochs)
            assert part["train"][name] == pytest.approx(mean, rel=1e-9)
        assert part["valid"] == each[epochs[-1]]["valid"]


class Drawing(type(find_task("intervals"))):
    """Draws a number while it measures, as a task does that generates or deletes at random."""

    def evaluate(self, model, batches, info):
        return {"loss": 1.0, "drawn": float(torch.rand(()))}


def test_what_a_task_draws_in_an_evaluation_is_the_same_every_time(tmp_path):
    def drawn(**changes):
        recipe = dataclasses.replace(tiny_recipe(tmp_path), task=Drawing(), **changes)
        run = Run(tmp_path / f"run-{recipe.seed}")
        train(recipe, run)
        return [record["valid"]["drawn"] for record in run.history()]

    assert len(drawn()) == 3
    assert len({*drawn(seed=1), *drawn(seed=2)}) == 1


def test_processes_draw_numbers_of_their_own_in_an_evaluation(tmp_path):
    recipe = tiny_recipe(tmp_path)
    splits = recipe.task.load(recipe.data, 0)
    model = recipe.task.build(recipe.model, splits)
    given = (model, Drawing(), splits.valid, splits.info, 0)
    first, second, again = (
        evaluate(*given, SimpleNamespace(process_index=i, num_processes=2, device=torch.device("cpu")))["drawn"]
        for i in (0, 1, 0)
    )
    assert first == again != second


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_come_back_bit_for_bit(tmp_path):
    tensors = {
        "half": torch.randn(3, dtype=torch.bfloat16),
        "whole": torch.arange(4),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 2),
        "turned": torch.randn(3, 4).T,
        "flags": torch.tensor([True, False]),
    }
    tensors["tied"] = tensors["turned"]
    state = {"x": 0.1 + 0.2, "tiny": 5e-324, "none": None, "list": [1, "ü"]}
    path = tmp_path / "c.safetensors"
    write_checkpoint(path, Checkpoint(tensors, state))
    back = read_checkpoint(path)
    assert back.state == state
    assert back.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_every_damaged_byte_is_noticed(tmp_path):
    path = tmp_path / "c.safetensors"
    write_checkpoint(path, Checkpoint({"x": torch.arange(5)}, {"a": 1}))
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            back = read_checkpoint(path)
        except LabError:
            continue
        # Blanks that fill the header up are the only bytes without a meaning.
        assert torch.equal(back.tensors["x"], torch.arange(5))
        assert back.state == {"a": 1}


# -- precision ---------------------------------------------------------------------------------------------------------


def test_bfloat16_trains_close_to_float32(tmp_path):
    recipe = tiny_recipe(tmp_path, "--training.precision=bf16", "--model.dropout=0", "--training.epochs=8")
    full = train(tiny_recipe(tmp_path, "--model.dropout=0", "--training.epochs=8"), Run(tmp_path / "full"))
    # Accelerate fixes the precision once per process.
    (half,) = together(process_server(), train_and_return, 1, recipe, tmp_path / "half")
    assert half["valid"]["loss"] != full["valid"]["loss"]
    assert half["valid"]["loss"] == pytest.approx(full["valid"]["loss"], rel=0.05)


# -- intervals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [True, False])
def test_windows_of_the_parts_do_not_overlap(tmp_path, apart):
    recipe = tiny_recipe(tmp_path, f"--data.apart={str(apart).lower()}")
    splits = find_task("intervals").load(recipe.data, 0)
    days = {part: set(getattr(splits, part).ordinal.tolist()) for part in ("train", "valid", "test")}
    held_out = days["valid"] | days["test"]
    assert (len(days["valid"]), len(days["test"])) == (9, 7)
    assert min(abs(a - b) for a in held_out for b in held_out if a != b) >= 3
    nearest = min(abs(a - b) for a in held_out for b in days["train"])
    assert nearest == (3 if apart else 1)


def test_features_are_the_days_before(tmp_path):
    splits = find_task("intervals").load(tiny_recipe(tmp_path).data, 0)
    train_days = splits.train
    by_day = {int(d): i for i, d in enumerate(train_days.ordinal)}
    pairs = [(i, by_day[d - 1]) for d, i in by_day.items() if d - 1 in by_day]
    assert pairs
    for later, earlier in pairs:
        assert train_days.features[later, 2] == train_days.low[earlier]
        assert train_days.features[later, 3] == train_days.high[earlier]
        assert train_days.features[later, :2].tolist() == train_days.features[earlier, 2:4].tolist()


def test_measures_of_a_forecast_that_is_known():
    from contmax_lab.tasks.intervals._model import Forecast

    task = find_task("intervals")
    forecast = Forecast(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([1.0, 2.0, 1.0]))
    batch = {"low": torch.tensor([-1.0, 0.0, 0.0]), "high": torch.tensor([1.0, 4.0, 2.0])}
    measures = task.measures(forecast, batch)
    assert measures["mse"].tolist() == [0.0, 4.0, 16.0]
    assert measures["jaccard"].tolist() == pytest.approx([1.0, 2 / 6, 0.0])
    assert measures["coverage"].tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("name", ["gaussian-sigma", "gaussian-95", "parabola", "triangular"])
def test_families_return_the_interval_they_stand_for_and_lose_nothing_on_it(name):
    from contmax_lab.tasks.intervals._model import FAMILIES

    family, low, high = FAMILIES[name], torch.tensor([-1.0, 0.2]), torch.tensor([1.0, 0.5])
    observed = family.observed(low, high)
    torch.testing.assert_close(family.half_width(observed), (high - low) / 2)
    torch.testing.assert_close(family.losses(observed, low, high), torch.zeros(2))
    assert bool((family.losses(observed, low + 0.1, high + 0.1) > 0).all())


def test_holdout_takes_what_fits():
    valid, test = non_overlapping_holdout(range(10), [2, 5], 0, lambda a, b: abs(a - b) < 3)
    assert len(valid) == 2
    assert len(test) <= 2


# -- pages -------------------------------------------------------------------------------------------------------------


def test_a_page_is_whole_and_escapes_what_it_is_given(tmp_path):
    canvas, axes = new_axes(2, 2)
    axes[0].plot([0, 1], [0, 1])
    figure = Figure("A <b> picture", lambda theme: canvas, "to & fro")
    section = Section("T<script>", "text", [["a", "b"], ["<i>", "1"]], [figure], ["note"])
    html, png = write_page(tmp_path / "x" / "r.html", "title", "lead", [section])
    text = html.read_text()
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "<script" not in text
    assert "<i>" not in text
    assert "&lt;i&gt;" in text
    assert "http" not in text
    assert text.count("<td") == 1
    again = write_page(tmp_path / "y" / "r.html", "title", "lead", [section])[0]
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(html.read_bytes()).digest()

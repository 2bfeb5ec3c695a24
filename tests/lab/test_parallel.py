"""Two processes do what one does: the same training at the same global batch, every example counted once."""

import pytest
from processes import count, together, train_and_return
from weather import tiny_recipe
from words import taught_and_measured

from contmax_lab.runs import Run
from contmax_lab.training import train
from forked import process_server


@pytest.fixture(scope="module")
def server():
    return process_server()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_example_is_counted_exactly_once_in_the_order_of_the_split(server, world):
    sizes = [1, 2, 5, 12, 13]
    for answers in together(server, count, world, sizes, 4):
        for size, metrics in zip(sizes, answers, strict=True):
            assert metrics["index"] == list(range(size))
            assert metrics["loss"] == pytest.approx(sum(range(size)) / size)
            assert metrics["words"] == [f"{index} words" for index in range(size)]
            assert metrics["square"] == [[i, i * i] for i in range(size)]


@pytest.mark.parametrize(("batch_size", "accumulate"), [(31, 1), (0, 1), (31, 3)])
def test_two_processes_train_as_one(server, tmp_path, batch_size, accumulate):
    # 127 examples in batches of 31 leave 3 for the last; random numbers of a model are drawn apart, so no dropout.
    options = ["--model.dropout=0", f"--training.batch_size={batch_size}", "--training.epochs=6", "--data.apart=false"]
    alone = train(tiny_recipe(tmp_path, *options), Run(tmp_path / "alone"), test=True)
    # In parts, of which one process has two in the last batch, and the other one.
    recipe = tiny_recipe(tmp_path, *options, f"--training.accumulate={accumulate}")
    first, second = together(server, train_and_return, 2, recipe, tmp_path / "together")
    assert {**first, "timing": 0} == {**second, "timing": 0}
    for split in ("valid", "test"):
        assert first[split] == pytest.approx(alone[split], abs=1e-4)
    assert first["steps"] == alone["steps"]
    histories = [Run(tmp_path / name).history() for name in ("alone", "together")]
    for one, other in zip(*histories, strict=True):
        assert other["train"] == pytest.approx(one["train"], abs=1e-4)


def test_words_count_alike_over_processes(server):
    """Shares of 4 and 2 words, and then of one word and of none."""
    weights, metrics, sums = taught_and_measured()
    for other in together(server, taught_and_measured, 2):
        assert other[0] == pytest.approx(weights, abs=1e-6)
        assert other[1] == pytest.approx(metrics, abs=1e-6)
        assert other[2]["weight"] == sums["weight"] == 7
        assert other[2]["loss"] == pytest.approx(sums["loss"], abs=1e-5)


def test_a_batch_with_fewer_examples_than_processes(server, tmp_path):
    few = ["--data.last=2015-02-28", "--data.valid=3", "--data.test=2"]
    recipe = tiny_recipe(tmp_path, "--model.dropout=0", "--training.batch_size=1", "--training.epochs=1", *few)
    alone = train(recipe, Run(tmp_path / "alone"))
    first, _ = together(server, train_and_return, 2, recipe, tmp_path / "together")
    assert first["valid"] == pytest.approx(alone["valid"], abs=1e-4)


def test_processes_stop_together_and_go_on_together_or_alone(server, tmp_path):
    recipe = tiny_recipe(tmp_path, "--model.dropout=0")
    alone = train(recipe, Run(tmp_path / "alone"))
    answers = together(server, train_and_return, 2, recipe, tmp_path / "stopped", 4)
    assert all(answer.startswith("stopped at step 4, everything is saved") for answer in answers)
    results = train(recipe, Run(tmp_path / "stopped"), resume=True)
    assert results["valid"] == pytest.approx(alone["valid"], abs=1e-4)
    history = Run(tmp_path / "stopped").history()
    assert [record["epoch"] for record in history] == [1, 2, 3]
    expected = Run(tmp_path / "alone").history()
    assert [r["train"]["loss"] for r in history] == pytest.approx([r["train"]["loss"] for r in expected], abs=1e-4)

"""What tasks may count on: a light contract, sums over weights, groups of parameters; and the rules of imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from words import Guess, Words, learner, take_step

from contmax_lab.contract import ParameterGroup, Recipe, TrainedRun, TrainingConfig
from contmax_lab.errors import LabError, UsageError
from contmax_lab.registry import task_names
from contmax_lab.training import evaluate
from contmax_lab.training._optimizer import load_optimizer_state, optimizer_state

ROOT = Path(__file__).parents[2]


def test_the_contract_and_the_registry_import_nothing_heavy():
    heavy = [
        "torch",
        "numpy",
        "matplotlib",
        "accelerate",
        "optuna",
        *(f"contmax_lab.tasks.{name}" for name in task_names()),
    ]
    program = (
        "import sys, contmax_lab.contract, contmax_lab.registry; contmax_lab.registry.task_names(); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_rules_of_imports_are_kept():
    lint_imports = pytest.importorskip("importlinter.cli").lint_imports
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0


def test_every_word_counts_alike_in_training_and_evaluation():
    task, words = Words(), torch.tensor([1.0, 2.0, 3.0, 5.0, 4.0, 4.0])
    one = learner(task)
    mean = float((1.5 - words).square().mean())
    found = evaluate(one.bare_model, task, range(4), {}, 3, one.accelerator)
    assert found == {"loss": pytest.approx(mean), "length": 1.5}
    take_step(one, [0, 1, 2, 3], 0, 1)
    assert one.sums()["weight"] == 6
    slope = float(2 * (1.5 - words).mean())
    expected = {"weight": torch.tensor(0.5 - 0.05 * slope), "bias": torch.tensor(1.0 - 0.1 * slope)}
    torch.testing.assert_close(one.weights(), expected)


def test_groups_have_their_own_weight_decay_and_keep_it_over_a_checkpoint():
    one = learner(Words(), weight_decay=0.3)
    assert [group["weight_decay"] for group in one.optimizer.param_groups] == [0.3, 0.0]
    take_step(one, [0, 1], 0, 2)
    other = learner(Words(), weight_decay=0.3)
    other.load_weights(one.weights())
    tensors, rest = optimizer_state(one.optimizer)
    load_optimizer_state(other.optimizer, {name: tensor.clone() for name, tensor in tensors.items()}, rest)
    for taught in (one, other):
        take_step(taught, [1, 3], 1, 2)
    assert one.weights() == other.weights()


def test_a_batch_without_any_weight_teaches_nothing():
    one = learner(Words())
    take_step(one, [2], 0, 1)
    assert one.weights() == {"weight": 0.5, "bias": 1.0}
    assert one.sums()["weight"] == 0


def test_a_parameter_that_no_group_has_is_named():
    class Forgetful(Words):
        def parameter_groups(self, network):
            return (ParameterGroup([network.weight]),)

    with pytest.raises(LabError, match="bias needs a gradient but is in no parameter group of the task words"):
        learner(Forgetful())


def test_losses_of_another_shape_are_named():
    class Summed(Words):
        def loss(self, output, batch):
            losses, weights = super().loss(output, batch)
            return losses.sum(), weights.sum()

    with pytest.raises(LabError, match=r"losses of shape \(\) and weights of shape \(\); both must have shape \(B,\)"):
        take_step(learner(Summed()), [0, 1], 0, 1)


def test_a_task_that_generates_scores_strings_of_all_examples_at_once():
    class Generating(Words):
        def evaluate(self, model, batches, info):
            pieces = [{"said": [f"{words}{info['mark']}" for words in batch["words"].tolist()]} for batch in batches]
            said = batches.in_order(pieces)["said"]
            return {"examples": len(said), "first": said[0]}

        def lengths(self, split):
            return [len(self.texts[index]) for index in split]

    task = Generating()
    one = learner(task)
    found = evaluate(one.bare_model, task, range(4), {"mark": "?"}, 1, one.accelerator)
    assert found == {"examples": 4, "first": "[1.0, 2.0, 3.0]?"}


def test_the_longest_examples_are_evaluated_first():
    """So that memory runs out at once, or never."""
    seen = []

    class Watched(Words):
        def lengths(self, split):
            return [len(self.texts[index]) for index in split]

        def batch(self, split, indices):
            seen.append([len(self.texts[index]) for index in indices])
            return super().batch(split, indices)

    found = evaluate(Guess(), Watched(), range(4), {}, 1, Accelerator(cpu=True))
    assert seen == [[3], [2], [1], [0]]
    assert found["length"] == 1.5


def test_entries_that_are_missing_are_noticed():
    class Careless(Words):
        def measures(self, output, batch):
            return {"first": batch["words"][:1].sum(-1)}

    task = Careless()
    with pytest.raises(ValueError, match="first has 2 entries for 4 examples"):
        evaluate(Guess(), task, range(4), {}, 3, Accelerator(cpu=True))


def test_by_default_a_validation_example_is_predicted_by_its_number():
    task = Words()
    splits = task.load(None, 0)
    recipe = Recipe(task, None, None, TrainingConfig())
    trained = TrainedRun(Path("run"), recipe, splits, Guess(), {}, "run")
    assert task.predict(trained, ["1"]).text == "length 3"
    for words in (["0"], ["5"], ["one"], [], ["1", "2"]):
        with pytest.raises(UsageError, match="pass the number of a validation example, from 1 to 4"):
            task.predict(trained, words)
    with pytest.raises(LabError, match="cannot be exported as a model folder"):
        task.export(trained, Path("model"), lambda model, part: {})

"""Search without trainings: what is drawn, what counts, which trial is best."""

import contextlib
import json
import shutil

import pytest
from weather import tiny_recipe

from contmax_lab.errors import Diverged, LabError, UsageError
from contmax_lab.registry import find_recipe
from contmax_lab.runs import Run
from contmax_lab.search import Search, search
from contmax_lab.workers import Outcome

WIDTH = {"model.hidden_dim": {"low": 1, "high": 1000, "log": True}}


class InThisProcess:
    """Workers whose trainings are a function of the recipe."""

    def __init__(self, judged):
        self.judged, self.over = judged, []

    @contextlib.contextmanager
    def open(self):
        yield self

    def has_room(self):
        return not self.over

    def begin(self, training):
        assert not training.test
        try:
            Run(training.folder).write_results(self.judged(training.recipe))
            self.over.append(Outcome(training))
        except Diverged as error:
            self.over.append(Outcome(training, str(error), diverged=True))
        except LabError as error:
            self.over.append(Outcome(training, str(error)))

    def outcomes(self, seconds):
        over, self.over = self.over, []
        return over

    def stop(self):
        return self.outcomes(0)


@pytest.fixture
def job(tmp_path, empty_database):
    """Makes a search whose trainings are a function of the recipe, and remembers what was trained."""
    address = f"sqlite:///{shutil.copy(empty_database, tmp_path / 's.db')}"

    def prepared(outcome, space, *overrides, trials=4, repetitions=()):
        tiny = tiny_recipe(tmp_path, *overrides)
        keys = [*overrides, f"--data.path={tmp_path / 'weather.csv'}", "--data.valid=9", "--data.test=7"]
        keys += ["--data.last=2015-12-31"]
        keys += [f"--search={json.dumps(space)}"]
        trained = []

        def judged(recipe):
            trained.append(recipe)
            return {"valid": {tiny.training.monitor: outcome(recipe), "other": -1.0}}

        source = find_recipe("intervals/parabola")
        return Search(source, tuple(keys), tmp_path / "s", address, trials, repetitions, InThisProcess(judged)), trained

    return prepared


@pytest.mark.parametrize(("goal", "best"), [("min", 2), ("max", 8)])
def test_the_best_is_the_smallest_or_the_largest_as_the_recipe_wants(job, goal, best):
    one, _ = job(
        lambda recipe: recipe.model.hidden_dim, {"model.hidden_dim": [4, 2, 8]}, f"--training.goal={goal}", trials=8
    )
    assert search(one).params == {"model.hidden_dim": best}


def test_a_trial_is_judged_by_the_mean_of_its_repetitions(job):
    values = {0: 1.0, 1: 2.0, 2: 9.0}
    repetitions = tuple(f"--data.split={split}" for split in values)
    one, trained = job(
        lambda recipe: values[recipe.data.split], {"model.hidden_dim": [4]}, trials=1, repetitions=repetitions
    )
    assert search(one).value == 4.0
    assert [recipe.data.split for recipe in trained] == [0, 1, 2]


def test_trials_that_diverge_count_and_are_never_the_best(job):
    def outcome(recipe):
        if recipe.model.hidden_dim == 2:
            raise Diverged("the training loss is not finite")
        return 5.0

    one, trained = job(outcome, {"model.hidden_dim": [2, 4]}, trials=8)
    assert search(one).params == {"model.hidden_dim": 4}
    assert {recipe.model.hidden_dim for recipe in trained} == {2, 4}
    assert len(trained) == 8
    search(one)
    assert len(trained) == 8


def test_when_every_trial_diverges_it_is_said(job):
    def outcome(recipe):
        raise Diverged("the training loss is not finite")

    one, _ = job(outcome, {"model.hidden_dim": [2]}, trials=2)
    with pytest.raises(LabError, match="no trial succeeded"):
        search(one)


def test_a_search_that_goes_on_draws_something_else(job):
    def drawn(trials):
        one, trained = job(lambda recipe: 1.0, {"training.learning_rate": {"low": 0.0, "high": 1.0}}, trials=trials)
        search(one)
        return [recipe.training.learning_rate for recipe in trained]

    first, more = drawn(3), drawn(6)
    assert len(first) == len(more) == 3
    assert len({*first, *more}) == 6


def test_whole_numbers_stay_whole_and_logarithms_spread_evenly(job):
    one, trained = job(lambda recipe: 1.0, WIDTH, trials=10)
    search(one)
    widths = [recipe.model.hidden_dim for recipe in trained]
    assert all(isinstance(width, int) for width in widths)
    # Half of them lie below √1000 when the logarithm is uniform, 3 % when the number is.
    assert 3 <= sum(width < 32 for width in widths) <= 8


def test_a_range_with_one_end_that_is_not_whole_is_continuous_and_its_logarithm_too(job):
    space = {"training.learning_rate": {"low": 1, "high": 1000.5, "log": True}}
    one, trained = job(lambda recipe: 1.0, space, trials=10)
    search(one)
    rates = [recipe.training.learning_rate for recipe in trained]
    assert any(rate != round(rate) for rate in rates)
    assert 3 <= sum(rate < 32 for rate in rates) <= 8


def test_search_without_choices_or_with_strange_ones(tmp_path):
    for space, says in (({}, "no section search"), ({"seed": 3}, "must be a list of values")):
        source, keys = find_recipe("intervals/parabola"), (f"--search={json.dumps(space)}",)
        with pytest.raises(UsageError, match=says):
            search(Search(source, keys, tmp_path / "s", f"sqlite:///{tmp_path}/s.db", 1))

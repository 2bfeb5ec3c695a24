"""Language: the start of document classification."""

import contextlib
import json
import math
import os
import shutil
import signal

import pytest
import torch
from reviews import texts, tiny_recipe, write_table, write_text_vectors

from contmax_lab.contract import Table
from contmax_lab.errors import Interrupted, LabError
from contmax_lab.registry import open_trained
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.documents._data import UNKNOWN
from contmax_lab.tasks.documents._task import TASK as DOCUMENTS
from contmax_lab.tasks.documents.language import LanguageModel
from contmax_lab.tasks.documents.language._task import TASK as LANGUAGE
from contmax_lab.tasks.documents.language._task import WordGuesser
from contmax_lab.training import train
from contmax_lab.training._learner import Learner

IMDB = next(table for table in DOCUMENTS.tables() if table.name == "documents")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    recipe = tiny_recipe(folder, "--training.precision=no", name="language/imdb")
    train(recipe, Run(folder / "run"))
    return folder / "run"


def guesser(words=8):
    torch.manual_seed(0)
    return WordGuesser(LanguageModel(words=words, hidden_dim=8), torch.randn(12, 5)).eval()


def brute_force(model, tokens):
    """Mean −log p over both directions, one word at a time, each direction seeing its own side alone."""
    total, count = 0.0, 0
    for place in range(1, len(tokens)):
        for known, target, head in (
            (tokens[:place], tokens[place], model.next),
            (tokens[place:], tokens[place - 1], model.previous),
        ):
            if not 2 <= target < 2 + model.words:
                continue
            read = torch.tensor([known])
            states = model.encoder(model.embedding(read), torch.ones_like(read, dtype=torch.bool))[0]
            state = states[-1, :8] if head is model.next else states[0, 8:]
            logits = model.embedding.weight[2 : 2 + model.words] @ head(state) + model.bias
            total -= float(logits.log_softmax(-1)[target - 2])
            count += 1
    return total / max(count, 1)


@torch.no_grad()
def test_surprise_is_that_of_readers_who_see_one_side_only():
    model = guesser()
    reviews = [[2, 5, 9, 3, UNKNOWN, 11, 4], [7, 3], [6]]
    padded = torch.tensor([[*review, *[0] * (7 - len(review))] for review in reviews])
    expected = torch.tensor([brute_force(model, review) for review in reviews])
    torch.testing.assert_close(model({"tokens": padded}), expected)


def test_gradients_do_not_depend_on_the_chunks(monkeypatch):
    model, tokens = guesser(), torch.randint(2, 12, (3, 9))
    model({"tokens": tokens}).sum().backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    monkeypatch.setattr("contmax_lab.tasks.documents.language._task._CHUNK", 5)
    model({"tokens": tokens}).sum().backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected)


def test_it_learns(start):
    history = Run(start).history()
    assert history[-1]["valid"]["loss"] < history[0]["valid"]["loss"] < math.log(20)
    assert history[0]["valid"]["bits"] == pytest.approx(history[0]["valid"]["loss"] / math.log(2))


def test_documents_begin_with_it(start, tmp_path):
    recipe = tiny_recipe(start.parent, f"--model.start={start}", "--training.learning_rate=1e-12")
    train(recipe, Run(tmp_path / "run"))
    begun = open_trained(start).model.state_dict()
    reader = open_trained(tmp_path / "run").model.state_dict()
    for name in ("embedding.weight", "encoder.lstm.weight_hh_l0_reverse"):
        torch.testing.assert_close(reader[name], begun[name])


def test_a_trained_model_no_longer_needs_its_start(start, tmp_path):
    recipe = tiny_recipe(start.parent, f"--model.start={start}", "--training.epochs=1")
    train(recipe, Run(tmp_path / "run"))
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(start), "/nowhere"))
    assert open_trained(tmp_path / "run").results["epochs"] == 1


def test_starts_that_cannot_be_used(start, tmp_path):
    with pytest.raises(LabError, match="nowhere holds no trained model; make one with contmax train language/imdb"):
        train(tiny_recipe(start.parent, "--model.start=/nowhere"), Run(tmp_path / "a"))
    with pytest.raises(LabError, match=r"does not fit \(encoder.lstm."):
        train(tiny_recipe(start.parent, f"--model.start={start}", "--model.hidden_dim=4"), Run(tmp_path / "b"))


def test_starts_of_another_task_or_another_split(start, tmp_path):
    train(tiny_recipe(start.parent, "--training.epochs=1"), Run(tmp_path / "reader"))
    with pytest.raises(LabError, match="reader is a run of the task documents; pass one of the task language"):
        train(tiny_recipe(start.parent, f"--model.start={tmp_path / 'reader'}"), Run(tmp_path / "a"))
    with pytest.raises(LabError, match=r"was trained with data.split=0, but here it is 1"):
        train(tiny_recipe(start.parent, f"--model.start={start}", "--data.split=1"), Run(tmp_path / "b"))


def test_a_training_that_goes_on_no_longer_needs_its_start(start, tmp_path):
    moved = tmp_path / "start"
    shutil.copytree(start, moved)
    recipe = tiny_recipe(start.parent, f"--model.start={moved}", "--training.epochs=2")
    whole = train(recipe, Run(tmp_path / "whole"), test=True)
    with pytest.raises(Interrupted), stopped_after_a_step():
        train(recipe, Run(tmp_path / "run"))
    shutil.rmtree(moved)
    assert train(recipe, Run(tmp_path / "run"), resume=True, test=True)["test"] == whole["test"]


@contextlib.contextmanager
def stopped_after_a_step():
    """Somebody asks to stop, as Ctrl-C does."""
    with pytest.MonkeyPatch.context() as patch:
        step = Learner.step

        def and_then(self, *arguments):
            step(self, *arguments)
            os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(Learner, "step", and_then)
        yield


@pytest.mark.usefixtures("trained_here")
def test_rows_are_not_mixed_with_another_start(start, tmp_path):
    full = IMDB
    table = Table("t", "", full.rows[:2], full.repetitions[:1], full.metrics, start=full.start)
    overrides = [f"--data.path={start.parent}", "--training.epochs=1", "--model.hidden_dim=8"]
    others = [shutil.copytree(start, tmp_path / name / "start") for name in ("a", "b")]
    reproduce(
        Reproduction(
            DOCUMENTS, table, tmp_path / "runs", tmp_path / "o.json", [*overrides, f"--model.start={others[0]}"]
        )
    )
    with pytest.raises(LabError, match="was trained with another recipe"):
        reproduce(
            Reproduction(
                DOCUMENTS, table, tmp_path / "runs", tmp_path / "o.json", [*overrides, f"--model.start={others[1]}"]
            )
        )


@pytest.mark.usefixtures("trained_here")
def test_a_start_that_is_gone_is_not_made_anew_for_some_rows(start, tmp_path):
    full = IMDB
    table = Table("t", "", full.rows[:2], full.repetitions[:1], full.metrics, start=full.start)
    overrides = [f"--data.path={start.parent}", "--training.epochs=1", "--model.hidden_dim=8"]
    runs = tmp_path / "runs"
    shutil.copytree(start, runs / "start")
    job = Reproduction(DOCUMENTS, table, runs, tmp_path / "o.json", overrides)
    with pytest.raises(LabError, match="start was trained with another recipe"):
        reproduce(job)
    shutil.rmtree(runs / "start")
    reproduce(job)
    assert Run(runs / "start").recipe(LANGUAGE).model.hidden_dim == 8
    shutil.rmtree(runs / "start")
    shutil.rmtree(runs / "discrete-sparsemax")
    with pytest.raises(LabError, match="start is not finished, but rows were trained from it"):
        reproduce(job)


def test_a_key_that_does_not_exist_is_said_before_the_start_is_trained(start, tmp_path):
    table = IMDB
    job = Reproduction(
        DOCUMENTS, table, tmp_path / "runs", tmp_path / "o.json", [f"--data.path={start.parent}", "--model.alfa=1"]
    )
    with pytest.raises(LabError, match=r"model\.alfa"):
        reproduce(job)
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("trained_here")
def test_a_table_trains_its_start_once_or_takes_one(start, tmp_path):
    full = IMDB
    table = Table("t", "", full.rows[:1], full.repetitions[:1], full.metrics, start=full.start)
    # The start has the sizes of its own recipe where nothing else is said: with few reviews it takes few steps.
    few = write_text_vectors(write_table(tmp_path / "few", texts(24, 0), texts(10, 1))).parent
    overrides = [f"--data.path={few}", "--training.epochs=1"]
    job = Reproduction(DOCUMENTS, table, tmp_path / "runs", tmp_path / "out.json", overrides)
    reproduce(job)
    stored = json.loads((tmp_path / "out.json").read_text())
    assert stored["start"]["recipe"] == "language/imdb"
    assert stored["start"]["results"]["epochs"] == 12
    stamp = Run(tmp_path / "runs" / "start").weights.stat().st_mtime_ns
    reproduce(job)
    assert Run(tmp_path / "runs" / "start").weights.stat().st_mtime_ns == stamp
    own = [f"--data.path={start.parent}", "--training.epochs=1", "--model.hidden_dim=8", f"--model.start={start}"]
    reproduce(Reproduction(DOCUMENTS, table, tmp_path / "other", tmp_path / "other.json", own))
    assert not (tmp_path / "other" / "start").exists()

"""The translator: its attention, its training, its translations, its pictures, its table."""

import json
import math
import sys

import pytest
import torch
from here import Here
from sentences import WORDS, padded_and_alone, pairs, tiny_recipe, write_iwslt, write_multi30k, write_parallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import contmax
from contmax.densities import BetaGaussian
from contmax_lab.drawing import LIGHT, rendered
from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint
from contmax_lab.registry import find_table, find_task, load_recipe, open_trained
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.translation import TranslationModel
from contmax_lab.tasks.translation._attention import Guesses, Look, SourceAttention, attention_measures
from contmax_lab.tasks.translation._model import Translator
from contmax_lab.training import _learner, evaluate_trained, train

TASK = find_task("translation")
KINDS = [("discrete", 1.0), ("discrete", 2.0), ("combined", 1.0), ("combined", 2.0), ("continuous", 2.0)]
SIZES = {"embedding_dim": 7, "encoder_dim": 5, "decoder_dim": 6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that knows a few sentences by heart, which are its validation too."""
    folder = tmp_path_factory.mktemp("trained")
    known = pairs(8, 3, longest=3)
    for name in ("train", "val", "test"):
        write_parallel(folder, name, known)
    changes = {
        "training.epochs": 50,
        "training.evaluate_every": 25,
        "training.learning_rate": 0.02,
        "training.batch_tokens": 200,
        "model.dropout": 0,
        "model.hidden_dropout": 0,
        "model.label_smoothing": 0,
        "model.embedding_dim": 24,
        "model.encoder_dim": 32,
        "model.decoder_dim": 48,
    }
    recipe = tiny_recipe(folder, *(f"--{key}={value}" for key, value in changes.items()))
    train(recipe, Run(folder / "run"), test=True)
    return open_trained(folder / "run")


def translator(kind="combined", alpha=2.0, **fields):
    torch.manual_seed(0)
    return Translator(TranslationModel(attention=kind, alpha=alpha, **SIZES, **fields), vocabulary=20).eval().double()


# -- the network -------------------------------------------------------------------------------------------------------


def test_encoder_agrees_with_packed_sequences():
    encoder = translator().encoder
    vectors, lengths = torch.randn(4, 9, 7, dtype=torch.float64), torch.tensor([9, 1, 4, 6])
    mask = torch.arange(9) < lengths[:, None]
    marked = torch.cat([vectors, (~mask).unsqueeze(-1).double()], -1)
    packed = pack_padded_sequence(marked, lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(encoder.gru(packed)[0], batch_first=True)[0]
    torch.testing.assert_close(encoder(vectors, mask) * mask.unsqueeze(-1), expected)


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_attention_is_that_of_the_library(kind, alpha):
    torch.manual_seed(0)
    attend = SourceAttention(TranslationModel(attention=kind, alpha=alpha, encoder_dim=2, decoder_dim=3)).double()
    basis = attend.basis
    values, query = torch.randn(3, 8, 4, dtype=torch.float64), torch.randn(3, 2, 3, dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor([[8], [3], [1]])
    context, look = attend(query, attend.memory(values, mask))
    # Parameters of the module of the library are those of ours.
    discrete = contmax.nn.DiscreteAttention(4, 3, alpha=alpha, hidden_dim=3).double()
    discrete.load_state_dict({name: p for name, p in attend.state_dict().items() if "basis" not in name})
    combined = contmax.nn.CombinedAttention(discrete, basis, alpha=alpha)
    expected, (weights, density) = combined(values, query, mask=mask)
    if kind == "discrete":
        expected = discrete(values, query, mask=mask)[0]
    else:
        torch.testing.assert_close(look.density(alpha).loc, density.loc)
        torch.testing.assert_close(look.density(alpha).scale, density.scale)
    if kind == "continuous":
        expected = contmax.continuous_attention(values, density, basis, mask=mask)
    torch.testing.assert_close(look.weights, weights)
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_padding_changes_nothing(kind, alpha):
    together, alone = padded_and_alone(translator(kind, alpha))
    said = torch.tensor([[True, True]])
    measured = attention_measures(together, torch.tensor([[True, True, False, False], [True, True, True, True]]))
    for name, value in attention_measures(alone, said).items():
        torch.testing.assert_close(measured[name][:1], value)


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_beam_search_says_what_the_network_guesses(kind, alpha):
    """A beam of one, and the guesses that follow from what it said."""
    model = translator(kind, alpha, beam=1, max_output=5)
    source = torch.tensor([[5, 9, 3, 0], [7, 8, 9, 3]])
    said = model.translated(source)
    guesses = model({"source": source, "target": torch.cat([torch.full((2, 1), 2), said], 1)}).logits
    guesses[..., [0, 2]] = -math.inf
    for row, logits in zip(said, guesses, strict=True):
        length = min(int((row != 0).sum()), 5)
        assert torch.equal(logits.argmax(-1)[:length], row[:length])


def test_gradients_reach_everything_that_learns():
    model = translator().train()
    batch = {"source": torch.tensor([[5, 9, 3]]), "target": torch.tensor([[2, 6, 3]])}
    losses, weights = TASK.loss(model(batch), batch)
    assert losses.shape == weights.shape == (1,)
    assert weights.tolist() == [2]
    losses.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_measures_by_hand():
    weights = torch.tensor([[[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1.0], [1.0, 0, 0, 0]]])
    guesses = Guesses(torch.zeros(1, 4, 2), Look(weights), 2.0, torch.ones(1, 4, dtype=torch.bool))
    found = attention_measures(guesses, torch.ones(1, 4, dtype=torch.bool))
    assert found["attended"].item() == pytest.approx((1 + 2 + 1 + 1) / 16)
    assert found["entropy"].item() == pytest.approx(math.log(2) / 4)
    assert found["monotone"].item() == pytest.approx(2 / 3)
    assert found["diagonal"].item() == pytest.approx((0 + 1 / 8 + 1 / 4 + 3 / 4) / 4)
    # A parabola over the middle half of the sentence.
    density = BetaGaussian.from_support(torch.tensor([[0.25]]), torch.tensor([[0.75]]))
    look = Look(torch.full((1, 1, 4), 0.25), density.mean, density.variance)
    guesses = Guesses(torch.zeros(1, 1, 2), look, 2.0, torch.ones(1, 4, dtype=torch.bool))
    found = attention_measures(guesses, torch.ones(1, 1, dtype=torch.bool))
    assert (found["attended"].item(), found["monotone"].item()) == (0.5, 1.0)
    assert found["entropy"].item() == pytest.approx(math.log(2), rel=1e-4)
    # The mean of both: a quarter of the weights, and half of the density, fall to each of the middle pieces.
    guesses = Guesses(guesses.logits, look, 2.0, guesses.mask, combined=True)
    found = attention_measures(guesses, torch.ones(1, 1, dtype=torch.bool))
    parts = (1 / 8, 3 / 8)
    assert found["entropy"].item() == pytest.approx(-2 * sum(x * math.log(x) for x in parts), rel=1e-4)


# -- training ----------------------------------------------------------------------------------------------------------


def test_it_learns_sentences_by_heart(trained):
    assert trained.results["valid"]["accuracy"] > 0.99
    assert trained.results["test"]["bleu"] > 90
    kept = Run(trained.folder).kept("test")["translations.tsv"].splitlines()
    assert len(kept) == 8
    assert all(line.count("\t") == 2 for line in kept)
    again = evaluate_trained(trained, "valid")
    assert again == pytest.approx(trained.results["valid"])


@pytest.mark.parametrize(("kind", "alpha"), KINDS)
def test_one_step_of_every_attention(tmp_path, kind, alpha):
    overrides = [f"--model.attention={kind}", f"--model.alpha={alpha}", "--data.limit=5", "--training.batch_tokens=0"]
    results = train(tiny_recipe(tmp_path, *overrides), Run(tmp_path / "run"))
    assert results["steps"] == 1
    assert results["valid"]["loss"] > 0
    assert "bleu" in results["valid"]
    # What is generated only for the final weights is not in the learning curve.
    assert "bleu" not in Run(tmp_path / "run").history()[0]["valid"]


@pytest.mark.parametrize("variant", ["short", "tatoeba", "own", "paper"])
def test_every_recipe_for_one_step(tmp_path, variant):
    recipe = tiny_recipe(tmp_path, "--data.limit=4", name=f"translation/{variant}")
    assert train(recipe, Run(tmp_path / "run"))["epochs"] == 1


def test_it_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    words = ("--data.limit=12", "--training.epochs=3", "--training.batch_tokens=30", "--training.checkpoint_seconds=0")
    recipe = tiny_recipe(tmp_path, *words)
    whole = train(recipe, Run(tmp_path / "whole"))
    step = _learner.Learner.step

    def limited(self, loaded, number, total):
        if number == 3:
            raise LabError("enough")
        step(self, loaded, number, total)

    with monkeypatch.context() as patch:
        patch.setattr(_learner.Learner, "step", limited)
        with pytest.raises(LabError, match="enough"):
            train(recipe, Run(tmp_path / "run"))
    resumed = train(recipe, Run(tmp_path / "run"), resume=True)
    assert resumed["valid"] == whole["valid"]
    one, other = (read_checkpoint(Run(tmp_path / name).weights).tensors for name in ("run", "whole"))
    assert all(torch.equal(one[name], tensor) for name, tensor in other.items())


def test_iwslt_needs_a_path_alone(tmp_path):
    folder = write_iwslt(tmp_path / "iwslt")
    small = ["--model.embedding_dim=6", "--model.encoder_dim=4", "--model.decoder_dim=4", "--model.max_output=5"]
    recipe = load_recipe("translation/paper", [f"--data.path={folder}", "--training.epochs=1", *small])
    results = train(recipe, Run(tmp_path / "run"), test=True)
    assert results["examples"] == {"train": 40, "valid": 9, "test": 7}
    assert results["test"]["bleu"] >= 0


# -- people ------------------------------------------------------------------------------------------------------------


def test_predict_prints_translation_and_alignment(trained, contmax, tmp_path):
    source, target = pairs(8, 3, longest=3)[0]
    code, out, err = contmax("predict", trained.folder, source, "--figure", tmp_path / "look.png")
    assert code == 0, err
    answer, empty, *lines = out.splitlines()
    assert answer == target
    assert empty == ""
    assert lines[-2].startswith("</s>")
    assert (tmp_path / "look.png").stat().st_size > 1000
    code, _, err = contmax("predict", trained.folder, " ")
    assert code == 2
    assert "pass a sentence" in err[0]


def test_pictures_show_runs_side_by_side(trained):
    figures = TASK.figures([trained, trained], [0])
    assert [figure.title for figure in figures] == ["Attention over sentence 1"]
    assert any(word in figures[0].caption for word in WORDS)
    assert rendered(figures[0].draw, LIGHT)[:4] == b"\x89PNG"
    assert len(TASK.figures([trained])) == 3
    assert TASK.figures([]) == []


def test_the_table_is_scored_where_sacrebleu_is(tmp_path, monkeypatch):
    """Trained on a machine without it, which stores the translations."""
    task, table = find_table("translation")
    assert len(list(table.cells())) == 24
    assert [row.paper.get("test.bleu") for row in table.rows] == [23.92, None, 24.0, 24.25, None, None, None, None]
    small = tiny_recipe(tmp_path / "data")
    table = type(table)(**{**vars(table), "rows": table.rows[:2], "repetitions": table.repetitions[:1]})
    keys = ("embedding_dim", "encoder_dim", "decoder_dim", "max_output")
    overrides = [f"--model.{key}={getattr(small.model, key)}" for key in keys]
    overrides += [f"--data.path={tmp_path / 'data'}", "--data.merges=100", "--training.epochs=1", "--data.limit=4"]
    job = Reproduction(task, table, tmp_path / "runs", tmp_path / "out.json", overrides, Here())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sacrebleu", None)
        reproduce(job)
    without = json.loads((tmp_path / "out.json").read_text())
    assert without["rows"][0]["groups"]["seeds"]["test.bleu"]["mean"] is None
    assert "comparisons" not in without
    here = Run(tmp_path / "runs" / "discrete-softmax" / "seed-0").provenance()["machine"]
    # How busy it was differs from one training to the next, and does not make it another machine.
    assert without["machine"] == {**here, "load_at_start": without["machine"]["load_at_start"]}
    for load, path in enumerate((tmp_path / "runs").rglob("provenance.json")):
        machine = {"gpus": ["elsewhere"], "load_at_start": load}
        path.write_text(json.dumps({**json.loads(path.read_text()), "machine": machine}))
    text = reproduce(job)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["rows"][0]["groups"]["seeds"]["test.bleu"]["mean"] is not None
    assert found["machine"]["gpus"] == ["elsewhere"]
    assert found["comparisons"]["signatures"]["bleu"].startswith("nrefs:1|case:lc")
    assert "Discrete sparsemax − discrete softmax" in " ".join(found["notes"])
    assert "23.92" in text
    assert "bleu" in Run(tmp_path / "runs" / "discrete-softmax" / "seed-0").results()["test"]


def test_data_of_ones_own_from_the_command_line(contmax, tmp_path):
    write_multi30k(tmp_path / "data")
    small = ["--model.embedding_dim=6", "--model.encoder_dim=4", "--model.decoder_dim=4", "--model.max_output=4"]
    arguments = ["--data.train", tmp_path / "data" / "train", "--training.epochs=1", "--limit", "6", *small]
    code, out, err = contmax("train", "translation/own", *arguments, "--folder", tmp_path / "run")
    assert code == 0, err
    assert "bleu" in out

"""The reader of reviews: its encoder, its training, its pictures, the model that travels."""

import dataclasses
import json

import pytest
import torch
from reviews import tiny_recipe
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from contmax_lab.cli import main
from contmax_lab.drawing import LIGHT, rendered
from contmax_lab.errors import LabError
from contmax_lab.registry import find_task, load_recipe, open_trained, shipped_recipes
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._model import Reader
from contmax_lab.tasks.documents._pretrained import SHIPPED, PretrainedReader, examples_section
from contmax_lab.tasks.documents._reading import Reading
from contmax_lab.training import evaluate_trained, train

TASK = find_task("documents")
ATTENTIONS = [("discrete", 1.0), ("discrete", 2.0), ("continuous", 1.0), ("continuous", 2.0), ("combined", 2.0)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learned which words matter."""
    folder = tmp_path_factory.mktemp("trained")
    changes = {
        "training.epochs": 12,
        "training.batch_size": 9,
        "training.learning_rate": 0.02,
        "training.monitor": "loss",
        "training.goal": "min",
        "model.dropout": 0,
    }
    recipe = tiny_recipe(folder, *(f"--{key}={value}" for key, value in changes.items()))
    train(recipe, Run(folder / "run"), test=True)
    return open_trained(folder / "run")


def exported(trained, folder):
    return TASK.export(trained, folder, lambda model, part: evaluate_trained(trained, part, model))


def reader(**fields):
    torch.manual_seed(0)
    return Reader(DocumentsModel(hidden_dim=8, num_basis=4, **fields), torch.randn(20, 5)).eval()


# -- the network -------------------------------------------------------------------------------------------------------


def test_encoder_agrees_with_packed_sequences():
    encoder = reader().double().encoder
    vectors, lengths = torch.randn(4, 9, 5, dtype=torch.float64), torch.tensor([9, 1, 4, 6])
    mask = torch.arange(9) < lengths[:, None]
    flags = (~mask).unsqueeze(-1).double()
    packed = pack_padded_sequence(torch.cat([vectors, flags], -1), lengths, batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(encoder.lstm(packed)[0], batch_first=True)[0]
    found = encoder(vectors, mask)
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-14)
    wanted = torch.autograd.grad(expected[mask].square().sum(), encoder.lstm.parameters())
    got = torch.autograd.grad(found[mask].square().sum(), encoder.lstm.parameters())
    torch.testing.assert_close(got, wanted)
    assert not got[0][:, -1].any()


@pytest.mark.parametrize(("attention", "alpha"), ATTENTIONS)
def test_a_review_is_read_the_same_in_every_batch(attention, alpha):
    model = reader(attention=attention, alpha=alpha)
    short, long = torch.tensor([[3, 5, 7]]), torch.randint(1, 20, (1, 30))
    together = torch.cat([torch.nn.functional.pad(short, (0, 27)), long])
    both, alone = model({"tokens": together}), model({"tokens": short})
    torch.testing.assert_close(both.logits[:1], alone.logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(both.inside[0, :3], alone.inside[0])
    assert not both.inside[0, 3:].any()


@pytest.mark.parametrize(("attention", "alpha"), ATTENTIONS)
def test_every_parameter_learns(attention, alpha):
    model = reader(attention=attention, alpha=alpha)
    model({"tokens": torch.randint(1, 20, (6, 15))}).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_gaussians_attend_everything_and_parabolas_a_stretch():
    tokens = torch.randint(1, 20, (5, 40))
    assert reader(attention="continuous", alpha=1.0)({"tokens": tokens}).inside.all()
    model = reader(attention="continuous", alpha=2.0)
    with torch.no_grad():
        model.attention.head.scale.bias.fill_(-8.0)
    reading = model({"tokens": tokens})
    positive = reading.density.density((torch.arange(40) + 0.5)[:, None] / 40).T > 0
    assert torch.equal(reading.inside, positive)
    assert (reading.inside.sum(-1) < 20).all()
    changes = reading.inside.int().diff(dim=-1).abs().sum(-1)
    assert (changes <= 2).all()


def test_the_attended_share_is_that_of_the_words_not_of_the_padding():
    mask = torch.tensor([[True, True, True, True, True], [True, True, False, False, False]])
    weights = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]])
    reading = Reading(torch.tensor([0.3, -0.2]), mask, weights)
    measures = TASK.measures(reading, {"labels": torch.tensor([1, 1])})
    assert measures["attended"].tolist() == pytest.approx([2 / 5, 1 / 2])
    assert measures["accuracy"].tolist() == [1, 0]


def test_combined_attention_has_the_parameters_of_discrete_attention():
    sizes = [sum(p.numel() for p in reader(attention=kind).parameters()) for kind in ("discrete", "combined")]
    assert sizes[0] == sizes[1]


def test_frozen_vectors_and_hidden_words():
    assert not reader(frozen=True).embedding.weight.requires_grad
    model = reader(word_dropout=1.0)
    some, other = torch.tensor([[2, 3, 4]]), torch.tensor([[5, 6, 7]])
    assert not torch.equal(model({"tokens": some}).logits, model({"tokens": other}).logits)
    model.train().dropout.p = 0.0
    assert torch.equal(model({"tokens": some}).logits, model({"tokens": other}).logits)


def test_model_does_not_change_the_table_it_was_made_from():
    vectors = torch.randn(20, 5)
    before = vectors.clone()
    with torch.no_grad():
        Reader(DocumentsModel(hidden_dim=8, num_basis=4), vectors).embedding.weight.zero_()
    assert torch.equal(vectors, before)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if name.startswith(("documents/", "language/"))])
def test_recipe_trains_one_step(name, tmp_path):
    recipe = tiny_recipe(tmp_path, "--training.epochs=1", "--training.batch_size=0", name=name)
    results = train(recipe, Run(tmp_path / "run"))
    assert results["steps"] == 1
    assert results["examples"] == {"train": 72, "valid": 8, "test": 30}


def test_it_learns_which_words_matter(trained):
    assert trained.results["test"]["accuracy"] > 0.9
    assert {"balanced_accuracy", "f1", "auroc", "auprc"} <= trained.results["test"].keys()
    assert trained.results["confusion"]["test"]["classes"] == ["negative", "positive"]
    assert 0 < trained.results["test"]["attended"] <= 1


@pytest.mark.parametrize(("begin", "end"), [("paper", "imdb"), ("imdb", "paper")])
def test_settings_that_are_exchanged_are_all_that_sets_two_recipes_apart(begin, end):
    table = next(table for table in TASK.tables() if table.name == "documents-exchanged")
    rows = [row for row in table.rows if row.variant == begin and "sparsemax" in row.label]
    assert len(rows) == 6
    changed = load_recipe(f"documents/{begin}", [override for row in rows for override in row.overrides])
    wanted = load_recipe(f"documents/{end}", ["--model.attention=combined"])
    assert changed.model == wanted.model
    # How many reviews are evaluated at a time changes no figure.
    size = wanted.training.evaluation_batch_size
    assert dataclasses.replace(changed.training, evaluation_batch_size=size) == wanted.training


def test_rows_of_the_tables_are_what_they_say():
    tables = {table.name: table for table in TASK.tables()}
    counts = {"documents-paper": 16, "documents-no-start": 16, "documents": 14, "documents-few": 20}
    assert {name: len(tables[name].rows) for name in counts} == counts
    assert tables["documents-speed"].rows == tables["documents-no-start"].rows
    keys = {row.label: row.overrides for row in tables["documents-paper"].rows}
    assert all(keys[row.label] == row.overrides for row in tables["documents-no-start"].rows)
    assert all(keys[row.label] == row.overrides for row in tables["documents"].rows)
    few = [row for row in tables["documents-few"].rows if row.label not in keys]
    assert len(few) == 8
    for row in (*tables["documents-paper"].rows, *few):
        model = load_recipe(f"documents/{row.variant}", row.overrides).model
        assert model.alpha == (1 if "softmax" in row.label else 2)
        kind = {"Disc.": "combined", "Discrete": "discrete", "Continuous": "continuous"}[row.label.split()[0]]
        head = next((head for head in ("gates", "narrow") if head in row.label), "pooled")
        assert (model.attention, model.head, model.values) == (kind, head, "states")
        assert kind == "discrete" or row.label.endswith(f"K = {model.num_basis}")


def test_every_table_of_documents_has_the_figures_of_the_paper_and_a_baseline():
    for table in TASK.tables():
        if table.name not in ("documents-paper", "documents-no-start", "documents"):
            continue
        printed = [row.paper["test.accuracy"] for row in table.rows if row.paper]
        assert (len(printed), min(printed), max(printed)) == (14, 89.62, 91.18)
        assert table.baseline in [row.label for row in table.rows]
        assert [metric.key for metric in table.metrics if metric.compared] == ["test.accuracy"]


def test_the_settings_of_the_paper_are_those_of_its_appendix():
    recipe = load_recipe("documents/paper")
    training, model = recipe.training, recipe.model
    assert (training.batch_size, training.epochs, training.patience) == (16, 10, 5)
    assert (training.optimizer, training.learning_rate, training.weight_decay) == ("adam", 0.001, 0.0001)
    assert (training.schedule, training.clip_norm, training.monitor) == ("constant", 0.0, "accuracy")
    assert (model.hidden_dim, model.frozen, model.dropout, model.word_dropout) == (128, True, 0.0, 0.0)
    assert (model.start, model.matching) == (None, "paper")


def test_a_narrow_head_begins_narrower_than_the_text():
    tokens = torch.randint(2, 20, (4, 60))
    attended = {
        head: float(reader(attention="continuous", head=head)({"tokens": tokens}).inside.float().mean())
        for head in ("pooled", "narrow")
    }
    assert attended["pooled"] == 1.0
    assert attended["narrow"] < 0.5


def test_rows_of_the_table_of_places():
    for row in TASK.tables()[-1].rows:
        recipe = load_recipe(f"documents/{row.variant}", row.overrides)
        kind = {"Disc.": "combined", "Discrete": "discrete", "Continuous": "continuous"}[row.label.split()[0]]
        assert (recipe.model.attention, recipe.model.alpha) == (kind, 1 if "softmax" in row.label else 2)
        assert (recipe.model.head == "gates") == ("gates" in row.label)
        assert (recipe.model.values == "words") == ("words" in row.label)
        assert recipe.data.deletion


@pytest.mark.usefixtures("trained_here")
def test_a_table_in_two_slices(tmp_path):
    table = next(table for table in TASK.tables() if table.name == "documents-few")
    small = type(table)(table.name, table.title, table.rows[:1], table.repetitions[:1], table.metrics)
    recipe = tiny_recipe(tmp_path)
    overrides = [f"--data.path={recipe.data.path}", "--model.hidden_dim=4", "--training.epochs=1"]
    job = Reproduction(TASK, small, tmp_path / "runs", tmp_path / "out.json", overrides)
    text = reproduce(job)
    assert "Continuous softmax, K = 8" in text
    first = json.loads((tmp_path / "out.json").read_text())
    assert first["complete"]
    assert reproduce(job) == text


# -- pictures and the model that travels -------------------------------------------------------------------------------


def test_pictures_of_reviews(trained):
    figures = TASK.figures([trained, trained])
    assert len(figures) == 4
    assert all(rendered(figure.draw, LIGHT).startswith(b"\x89PNG") for figure in figures)
    assert TASK.figures([]) == []
    assert [figure.title for figure in TASK.figures([trained], [4, 0])] == [
        "Attention over review 5",
        "Attention over review 1",
    ]


def test_exported_model_says_what_the_run_says(trained, tmp_path):
    size = exported(trained, tmp_path / "model")
    assert size == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    reader = PretrainedReader.load(tmp_path / "model")
    batch = TASK.batch(trained.splits.test, range(len(trained.splits.test)))
    rounded, exact = (TASK.loss(model(batch), batch)[0].mean().item() for model in (reader.model, trained.model))
    assert reader.card["figures"]["test"]["loss"] == pytest.approx(rounded, rel=1e-6) != pytest.approx(exact, rel=1e-6)
    assert trained.results["test"]["loss"] == pytest.approx(exact, rel=1e-6)
    assert str(tmp_path) not in json.dumps(reader.card)
    assert reader.read("The film is wonderful.").probability > 0.5 > reader.read("A dull plot!").probability
    logits = trained.model(TASK.batch(trained.splits.test, [0])).logits
    words = trained.splits.info["words"]
    text = " ".join(words[number - 2] for number in TASK.batch(trained.splits.test, [0])["tokens"][0].tolist())
    assert reader.read(text).reading.logits.item() == pytest.approx(logits.item(), abs=0.05)


def test_predict_and_export_as_commands(trained, tmp_path, capsys):
    main(["export", str(trained.folder), "--into", str(tmp_path / "model")])
    assert "MB in" in capsys.readouterr().out
    picture = tmp_path / "picture.png"
    main(["predict", "A wooden plot.", "--model", str(tmp_path / "model"), "--figure", str(picture)])
    verdict, marked, _ = capsys.readouterr().out.splitlines()
    assert verdict.startswith("negative (")
    assert marked.replace("[", "").replace("]", "") == "a wooden plot ."
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_is_asked_with_words(trained, capsys):
    main(["predict", str(trained.folder), "A wooden", "plot."])
    verdict, marked = capsys.readouterr().out.splitlines()
    assert verdict.startswith("negative (")
    assert marked.replace("[", "").replace("]", "") == "a wooden plot ."
    with pytest.raises(SystemExit):
        main(["predict", "A wooden plot.", "--data.path", "nowhere"])
    assert "pass the folder of a RUN" in capsys.readouterr().err


def test_complaints_about_models_and_texts(trained, tmp_path, capsys):
    exported(trained, tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        main(["predict", " ", "--model", str(tmp_path / "model")])
    assert ended.value.code == 2
    assert "no words" in capsys.readouterr().err
    (tmp_path / "model" / "vocab.txt").write_text("film\n")
    with pytest.raises(LabError, match=r"does not fit config\.json: embedding\.weight"):
        PretrainedReader.load(tmp_path / "model")
    with pytest.raises(LabError, match="no such file"):
        PretrainedReader.load(tmp_path / "nowhere")


def test_section_of_examples(trained, tmp_path):
    exported(trained, tmp_path)
    section = examples_section(PretrainedReader.load(tmp_path))
    assert len(section.table) == len(section.figures) + 1 == 4


def test_model_of_the_package():
    reader = PretrainedReader.load()
    assert sum(path.stat().st_size for path in SHIPPED.iterdir() if path.is_file()) < 3e6
    assert reader.card["figures"]["test"]["accuracy"] > 0.85
    assert reader.read("A wonderful, moving film. I loved it.").probability > 0.8
    assert reader.read("A dull and badly written mess, a waste of time.").probability < 0.2

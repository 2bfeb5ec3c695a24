"""Questions about images: from a table to a run, an answer and pictures; every attention takes a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from rooms import COLOURS, SMALL, SMALL_MODEL, colour_grids, tiny_wordnet, write_table

import contmax
from contmax_lab.contract import Cell
from contmax_lab.drawing import LIGHT, rendered
from contmax_lab.registry import load_recipe, open_trained, shipped_recipes
from contmax_lab.tables import summarised
from contmax_lab.tasks.vqa import VqaData
from contmax_lab.tasks.vqa._data import load
from contmax_lab.tasks.vqa._figures import seen_images
from contmax_lab.tasks.vqa._reduction import where_measures
from contmax_lab.tasks.vqa._task import PASTED, TASK, VQA

VARIANTS = [name for name in shipped_recipes() if name.startswith("vqa/")]
KINDS = ["question", "frequent", "discrete", "continuous", "windows", "mixture", "combined"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, features and images."""
    folder = tmp_path_factory.mktemp("rooms")
    colour_grids(folder)
    (folder / "images").mkdir()
    for number in range(24):
        Image.new("RGB", (20, 20), COLOURS[number % 4]).save(folder / "images" / f"room{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """A run of continuous attention."""
    from contmax_lab.cli import main

    fast = ("--training.epochs=25", "--training.batch_size=8", "--training.learning_rate=0.01", "--model.dropout=0")
    where = ("--data.train", folder / "questions.csv", "--data.features", folder / "features")
    words = (*where, "--data.images", folder / "images", *SMALL, *fast, "--training.warmup_steps=0")
    main([str(word) for word in ("train", "vqa/small", *words, "--folder", folder / "run")])
    return open_trained(folder / "run")


@pytest.fixture(scope="module")
def splits(folder):
    return load(VqaData(train=folder / "questions.csv", features=folder / "features"))


def one_step(model, splits):
    """One step of a fresh network: itself, the batch and the output."""
    torch.manual_seed(0)
    network, batch = TASK.build(model, splits), TASK.batch(splits.train, range(min(8, len(splits.train))))
    output = network(batch)
    TASK.loss(output, batch)[0].mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    return network.eval(), batch, output


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_one_step_of_every_attention(splits, kind, alpha):
    model, batch, output = one_step(replace(SMALL_MODEL, attention=kind, alpha=alpha), splits)
    assert output.logits.shape == (8, 4)
    measured = TASK.measures(output, batch)
    assert ("area" in measured) == (kind not in ("question", "frequent"))
    learning = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    if kind not in ("question", "frequent"):
        assert {"enter.weight", "image_merge.weight", "lstm.weight_ih_l0"} <= learning
        assert any(name.startswith("reduction") for name in learning)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_step_of_every_variant(splits, name):
    one_step(load_recipe(name, SMALL).model, splits)


@pytest.mark.parametrize("kind", ["question", "discrete", "continuous"])
def test_one_step_in_bfloat16(splits, kind):
    model, full = replace(SMALL_MODEL, attention=kind, dropout=0.0), []
    with torch.autocast("cpu", torch.bfloat16):
        network, batch, output = one_step(model, splits)
        network.lstm.register_forward_hook(lambda *call: full.append(call[-1][0]))
        network(batch)
    assert network(batch).logits.sub(output.logits).abs().max() < 0.1
    # The question is read in float32, on this processor as on any other.
    assert torch.equal(*full)


def test_the_default_is_of_the_papers_size():
    model = load_recipe("vqa").model
    assert (model.layers, model.heads, model.hidden_dim, model.fused_dim, model.flat_dim) == (6, 8, 512, 1024, 512)
    assert (model.functions**2, model.variance, model.word_dim, model.dropout) == (100, 0.001, 300, 0.1)
    training = load_recipe("vqa").training
    assert (training.schedule, training.decay, training.decay_at) == ("milestones", 0.2, [10, 12])


@pytest.mark.parametrize(("kind", "alpha"), [("discrete", 1.0), ("continuous", 2.0)])
def test_a_tiny_batch_is_overfitted(splits, kind, alpha):
    torch.manual_seed(0)
    model = TASK.build(replace(SMALL_MODEL, attention=kind, alpha=alpha, dropout=0.0), splits)
    batch = TASK.batch(splits.train, range(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss = TASK.loss(model(batch), batch)[0].mean()
        loss.backward()
        optimizer.step()
    assert TASK.measures(model.eval()(batch), batch)["accuracy"].mean() == 1


def test_continuous_attention_is_that_of_the_library(splits):
    """The reduction by hand: moments of a softmax over cells, the density with these, the fitted signal's mean."""
    model = TASK.build(replace(SMALL_MODEL, alpha=1.0), splits).eval()
    values = torch.randn(3, 16, 16)
    attended = model.reduction(values)
    weights = model.reduction.attend.head.discrete.scores(values).squeeze(1).softmax(-1)
    lines = (torch.arange(4) + 0.5) / 4
    mean, covariance = contmax.maps.moments(weights, torch.cartesian_prod(lines, lines), grid=(4, 4))
    torch.testing.assert_close(attended.density.mean, mean)
    torch.testing.assert_close(attended.density.covariance_matrix, covariance)
    density = torch.distributions.MultivariateNormal(mean, covariance)
    context = contmax.fit_signal(values, model.reduction.attend.basis, grid=(4, 4)).expectation(density)
    torch.testing.assert_close(attended.context, context, rtol=1e-4, atol=1e-5)


def test_a_mixture_has_the_moments_of_a_joint_softmax(splits):
    model = TASK.build(replace(SMALL_MODEL, attention="mixture"), splits).eval()
    values = torch.randn(2, 16, 16)
    density = model.reduction(values).density
    joint = model.reduction.attend.head.scores(values).flatten(1).softmax(-1).unflatten(1, (3, 16))
    torch.testing.assert_close(density.mixture_distribution.probs, joint.sum(-1))
    lines = (torch.arange(4) + 0.5) / 4
    torch.testing.assert_close(density.mean, joint.sum(1) @ torch.cartesian_prod(lines, lines))


def test_windows_are_left_out_where_weights_are_zero(splits):
    model = replace(SMALL_MODEL, attention="windows", windows=3, weights_alpha=2.0)
    reduction = TASK.build(model, splits).eval().reduction
    values = torch.randn(2, 16, 16)
    density = reduction(values).density
    weights = contmax.sparsemax(reduction.attend.head.discrete.scores(values).squeeze(1))
    lines = (torch.arange(4) + 0.5) / 4
    torch.testing.assert_close(density.mean, weights @ torch.cartesian_prod(lines, lines))
    assert density.mixture_distribution.probs.shape == (2, 9)
    # Of 3 × 3 windows those at a corner hold the cell there.
    assert torch.equal(density.mixture_distribution.probs[:, 0] > 0, weights[:, [0, 1, 4, 5]].sum(-1) > 0)


def test_regions_are_attended_by_their_centres(tmp_path):
    (tmp_path / "regions").mkdir()
    random = np.random.default_rng(0)
    for number in range(6):
        boxes = np.sort(random.random((2 + number, 2, 2)), axis=1).reshape(-1, 4)
        features = random.standard_normal((2 + number, 5)).astype(np.float32)
        np.savez(tmp_path / "regions" / f"room{number}.npz", features=features, boxes=boxes)
    rows = [{"image": f"room{i}", "question": "what", "answer": "ab"[i % 2]} for i in range(6)]
    table = write_table(tmp_path / "a.csv", rows)
    splits = load(VqaData(train=table, features=tmp_path / "regions"))
    for kind in ("discrete", "continuous", "windows", "mixture", "combined"):
        model, batch, output = one_step(replace(SMALL_MODEL, attention=kind), splits)
        assert output.logits.isfinite().all()
        assert "area" not in TASK.measures(output, batch)
        # What is padded does not matter.
        alone = TASK.batch(splits.train, [0])
        together = {name: value[:1] for name, value in TASK.batch(splits.train, range(5)).items()}
        torch.testing.assert_close(model(alone).logits, model(together).logits, rtol=1e-4, atol=1e-5)


def test_colours_are_learned_and_shown(run, folder, contmax, monkeypatch, tmp_path):
    assert run.results["valid"]["accuracy"] == 1
    figures = seen_images([run])
    assert figures
    assert rendered(figures[0].draw, LIGHT).startswith(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    code, out, _ = contmax("predict", folder / "run", folder / "images" / "room2.png", "What colour is the sofa?")
    assert code == 0
    assert out.splitlines()[0].startswith("blue (")
    assert "unknown words: the, sofa" in out
    assert (tmp_path / "room2-overlay.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["room.png"], "pass an image and a question"), (["room.png", "?"], "pass an image and a question"),
     (["none.png", "what"], "no such file"), (["new.png", "what"], "there are no features new.npy")],
)  # fmt: skip
def test_predict_refuses_in_one_line(run, folder, contmax, words, complaint, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8)).save("new.png")
    code, _, lines = contmax("predict", folder / "run", *words)
    assert code in (1, 2)
    assert len(lines) == 1
    assert complaint in lines[0]


def test_likeness_of_answers_is_measured_where_wordnet_is(folder, contmax, tmp_path):
    rows = [{"image": f"room{i}", "question": "what", "answer": ("chair", "table")[i % 2]} for i in range(8)]
    table = write_table(tmp_path / "a.csv", rows)
    words = ("--data.train", table, "--data.test", table, "--data.features", folder / "features", *SMALL)
    for run, wordnet in (("with", ("--data.wordnet", tiny_wordnet(tmp_path / "wordnet"))), ("without", ())):
        what = ("train", "vqa/small", *words, *wordnet, "--model.attention=frequent", "--training.epochs=1")
        code, out, lines = contmax(*what, "--folder", tmp_path / run, "--test")
        assert code == 0
        assert ("wups_90" in out) == (run == "with")
        assert not lines
    found = open_trained(tmp_path / "with", [f"--data.wordnet={tmp_path / 'wordnet'}"]).results["test"]
    # Half of the answers are right; chair and table are alike by 3/4, a tenth of it below 0.9.
    assert found["wups_0"] == pytest.approx(0.875)
    assert found["wups_90"] == pytest.approx(0.5375)


def test_the_object_that_is_asked_for_is_overlapped():
    density = contmax.densities.MultivariateBetaGaussian.from_moments(
        torch.tensor([[0.25, 0.25]]), 0.25**2 / 6 * torch.eye(2).unsqueeze(0), 2.0
    )
    from contmax_lab.attention import Attended

    box, other = torch.tensor([[[0.0, 0.0], [0.5, 0.5]]]), torch.tensor([[[0.5, 0.5], [1.0, 1.0]]])
    place = Attended(torch.zeros(1, 1), density=density)
    found = where_measures(place, (14, 14), sparse=True, box=box, other_box=other)
    # A disk that touches all sides of a square.
    assert found["iou"].item() == pytest.approx(torch.pi / 4, abs=0.02)
    assert found["area"].item() == pytest.approx(torch.pi / 16, abs=0.01)
    assert found["inside"].item() == pytest.approx(1.0)
    assert found["inside_other"].item() == 0
    assert found["chosen"].item() == 1


def test_pasted_objects_end_to_end(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("contmax_lab.tasks.vqa._data.SIZE", 32)
    every_eighth = lambda: lambda images: images[..., ::8, ::8].permute(0, 2, 3, 1).half()  # noqa: E731
    monkeypatch.setattr("contmax_lab.tasks.vqa._features.GridNetwork", every_eighth)
    data = VqaData(train=folder / "questions.csv", images=folder / "images", features=tmp_path / "f.npy", pasted=2,
                   resident=True)  # fmt: skip
    splits = load(data)
    assert [len(splits.train), len(splits.valid)] == [44, 4]
    more = load(replace(data, pasted_train=5, features=tmp_path / "more.npy"))
    assert [len(more.train), len(more.valid)] == [110, 4]
    assert len({question.image for question in more.train.questions}) == 110
    for one, other in zip(splits.valid.questions, more.valid.questions, strict=True):
        assert (one, splits.valid.scenes[one.image]) == (other, more.valid.scenes[other.image])
    image = splits.valid.questions[0].image
    torch.testing.assert_close(splits.valid.features.take([image]), more.valid.features.take([image]))
    _, batch, output = one_step(SMALL_MODEL, splits)
    assert "rows" in batch
    assert {"iou", "inside", "inside_other", "chosen"} <= TASK.measures(output, batch).keys()


def test_tables_compare_rows_seed_by_seed():
    outcomes = [
        (Cell(row, repetition), {"test": {"accuracy": 0.2 + 0.01 * seed + (0.05 if "2D" in row.label else 0.0)}})
        for seed, repetition in enumerate(VQA.repetitions)
        for row in VQA.rows
    ]
    lines = summarised(VQA, outcomes)["differences"]["text"].splitlines()
    assert lines[0].split("|")[1].strip() == "minus Discrete softmax"
    found = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in lines[2:]}
    assert found["2D continuous sparsemax"] == "+5.00 [+5.00, +5.00]"
    assert found["Discrete sparsemax"] == "+0.00 [+0.00, +0.00]"
    assert "Discrete softmax" not in found


@pytest.mark.parametrize("table", [VQA, PASTED], ids=lambda table: table.name)
def test_rows_of_tables_are_recipes(table):
    for cell in list(table.cells())[:: len(table.repetitions) + 1]:
        load_recipe(f"vqa/{cell.row.variant}", ["--data.path=.", *cell.overrides])


def test_the_benchmark_times_whole_steps():
    from contmax_lab.bench import QUICK
    from contmax_lab.bench import VQA as SUITE

    figures = list(SUITE.figures(QUICK))
    assert [figure.at_most for figure in figures] == [1.2, 1.2, None, None]
    assert all(figure.value > 0 for figure in figures)

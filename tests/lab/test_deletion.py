"""Gates and local values of the reader of reviews; and the deletion test: what is said of the attended words alone."""

import itertools

import pytest
import torch
from reviews import tiny_recipe
from torch.nn.functional import pad

from contmax_lab.deletion import only, random_stretch, random_words
from contmax_lab.registry import find_task, open_trained
from contmax_lab.runs import Run
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._model import Reader
from contmax_lab.tasks.documents._reading import Reading, deletion_test
from contmax_lab.training import evaluate_trained, train

TASK = find_task("documents")
TESTS = ("kept", "removed", "random_kept", "random_removed")
KINDS = [
    {"attention": "discrete", "values": "words"},
    {"attention": "continuous", "head": "gates"},
    {"attention": "continuous", "head": "gates", "values": "words"},
    {"attention": "continuous", "head": "pooled", "values": "words"},
    {"attention": "combined", "head": "gates"},
    {"attention": "combined", "head": "gates", "values": "words"},
    {"attention": "combined", "head": "pooled", "values": "words"},
]


def reader(**fields):
    torch.manual_seed(0)
    return Reader(DocumentsModel(hidden_dim=8, num_basis=4, **fields), torch.randn(20, 5)).eval()


def choosy(**fields):
    """A reader whose attention has decided, which a fresh one has not: gates and energies are sharp, widths small."""
    model = reader(**fields)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("energy.weight"):
                parameter.mul_(100)
            if name.endswith("head.scale.bias"):
                parameter.fill_(-4.0)
    return model


def reviews(*lengths):
    """Numbers of words, random, padded with 0; and random draws."""
    torch.manual_seed(1)
    tokens = torch.randint(1, 20, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return tokens * mask, torch.rand(tokens.shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deletion")


@pytest.fixture(scope="module")
def run(folder):
    """A tiny training that ends with the test."""
    recipe = tiny_recipe(folder, "--data.deletion=true", "--model.head=gates", "--model.attention=continuous")
    train(recipe, Run(folder / "run"), test=True)
    return open_trained(folder / "run")


# -- as a table asks for it --------------------------------------------------------------------------------------------


def test_a_training_ends_with_it_and_validates_without(run):
    for name in (*TESTS, "selected"):
        assert name in run.results["test"]
        assert name not in run.results["valid"]
    assert run.results["test"]["selected"] == pytest.approx(run.results["test"]["attended"])
    assert evaluate_trained(run, "test") == pytest.approx(run.results["test"])


def test_draws_are_of_the_seed_and_not_of_the_batch(folder):
    data = tiny_recipe(folder, "--data.deletion=true").data
    first, again, other = (TASK.load(data, seed) for seed in (3, 3, 4))
    batches = [TASK.batch(splits.test, [4, 9]) for splits in (first, again, other)]
    assert torch.equal(batches[0]["draws"], batches[1]["draws"])
    assert not torch.equal(batches[0]["draws"], batches[2]["draws"])
    assert all(torch.equal(batch["tokens"], batches[0]["tokens"]) for batch in batches)
    alone = TASK.batch(first.test, [9])["draws"][0]
    assert torch.equal(batches[0]["draws"][1, : len(alone)], alone)
    assert all("draws" not in TASK.batch(split, [0]) for split in (first.train, first.valid))
    assert "draws" not in TASK.batch(TASK.load(tiny_recipe(folder).data, 3).test, [0])


def test_an_answer_to_nothing_is_a_coin():
    tokens, draws = reviews(6, 4)
    model = reader(attention="continuous")
    with torch.no_grad():
        model.attention.head.scale.bias.fill_(8.0)
    output = model({"tokens": tokens, "draws": draws})
    assert output.inside.sum(-1).tolist() == [6, 4]
    measures = TASK.measures(output, {"labels": torch.tensor([1, 1])})
    assert measures["removed"].tolist() == measures["random_removed"].tolist() == [0.5, 0.5]
    assert measures["selected"].tolist() == [1, 1]
    assert torch.equal(measures["kept"], measures["accuracy"])
    assert torch.equal(measures["random_kept"], measures["accuracy"])
    torch.testing.assert_close(output.shortened["kept"].logits, output.logits)


# -- which words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*KINDS, {"attention": "discrete", "alpha": 1.0}, {"attention": "combined"}])
def test_what_is_kept_and_what_is_removed_are_the_review(kind):
    tokens, draws = reviews(30, 7, 1)
    model, read = choosy(**kind), []
    reading = model({"tokens": tokens})
    assert 0 < reading.selected[0].sum() < 30

    def listening(shorter):
        read.append(shorter)
        return model.read(shorter)

    rests = deletion_test(listening, tokens, reading, draws)
    assert tuple(rests) == TESTS
    for kept, removed in ((0, 1), (2, 3)):
        for row in range(3):
            halves = torch.cat([read[kept][row], read[removed][row]])
            assert sorted(halves[halves > 0].tolist()) == sorted(tokens[row][tokens[row] > 0].tolist())
    assert torch.equal(rests["kept"].words, rests["random_kept"].words)
    assert torch.equal(rests["kept"].words, reading.selected.sum(-1))
    assert all(rest.logits.isfinite().all() for rest in rests.values())
    if reading.density is not None:
        stretch = read[2][0][read[2][0] > 0]
        assert any(torch.equal(stretch, window) for window in tokens[0].unfold(0, len(stretch), 1))
    # A shortened review is read as one that somebody wrote.
    torch.testing.assert_close(rests["kept"].logits[0], model.read(tokens[:1, reading.selected[0]]).logits[0])


def test_only_these_words_in_their_order():
    tokens = torch.tensor([[5, 6, 7, 8], [9, 3, 0, 0], [4, 0, 0, 0]])
    words = torch.tensor([[True, False, True, True], [False, True, False, False], [False] * 4])
    assert only(tokens, words).tolist() == [[5, 7, 8], [3, 0, 0], [0, 0, 0]]
    assert only(tokens, torch.zeros_like(words)).tolist() == [[0], [0], [0]]


def test_random_stretches_have_the_length_and_every_place():
    # 420 can be shared equally among up to 7 places. Then the largest number below one that can be drawn.
    draws = torch.cat([(torch.arange(420) + 0.5) / 420, torch.tensor([1 - 2**-24])])[:, None].expand(-1, 9)
    mask = torch.arange(9) < torch.full((421, 1), 7)
    for count in range(1, 8):
        drawn = random_stretch(torch.full((421,), count), mask, draws)
        assert (drawn.sum(-1) == count).all()
        assert not (drawn & ~mask).any()
        assert (pad(drawn.int(), (1, 1)).diff().abs().sum(-1) == 2).all()
        assert drawn[:-1].int().argmax(-1).bincount().tolist() == [420 // (8 - count)] * (8 - count)
    assert not random_stretch(torch.zeros(421, dtype=torch.long), mask, draws).any()


def test_random_sets_have_the_size_and_are_equally_likely():
    draws = torch.tensor(list(itertools.permutations((0.1, 0.3, 0.6, 0.8))))
    draws = pad(draws, (0, 2))
    mask = torch.arange(6) < torch.full((24, 1), 4)
    drawn = random_words(torch.full((24,), 2), mask, draws)
    seen, often = drawn.unique(dim=0, return_counts=True)
    assert len(seen) == 6
    assert often.tolist() == [4] * 6
    assert (drawn.sum(-1) == 2).all()
    assert not drawn[:, 4:].any()


def test_weights_without_zeros_select_the_fewest_words_with_most_of_the_mass():
    torch.manual_seed(0)
    weights = (3 * torch.randn(20, 7)).softmax(-1)
    mask = torch.ones(20, 7, dtype=torch.bool)
    selected = Reading(torch.zeros(20), mask, weights, sparse=False).selected
    sets = torch.tensor(list(itertools.product((0, 1), repeat=7)))
    fewest = torch.where(weights @ sets.mT.float() >= 0.95, sets.sum(-1), 8).amin(-1)
    assert torch.equal(selected.sum(-1), fewest)
    assert ((weights * selected).sum(-1) >= 0.95).all()
    assert (selected.sum(-1) < 7).any()


def test_a_gaussian_selects_its_middle():
    with torch.no_grad():
        reading = choosy(attention="continuous", alpha=1.0)({"tokens": reviews(200)[0]})
    assert reading.inside.all()
    low, high = (float(reading.density.icdf(torch.tensor(p))) for p in (0.025, 0.975))
    middle = (torch.arange(200) + 0.5) / 200
    expected = (middle > low) & (middle < high)
    assert 0 < low < high < 1
    assert (reading.selected[0] ^ expected).sum() <= 2


# -- gates and words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind):
    model = reader(**kind)
    model({"tokens": reviews(15, 12, 9)[0]}).logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_review_is_read_the_same_in_every_batch(kind):
    model = reader(**kind)
    tokens = reviews(30, 3)[0]
    both, alone = model({"tokens": tokens}), model({"tokens": tokens[1:, :3]})
    torch.testing.assert_close(both.logits[1:], alone.logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(both.selected[1, :3], alone.selected[0])
    assert not both.selected[1, 3:].any()


def test_gates_attend_to_a_stretch_and_their_shares_to_every_word():
    tokens = reviews(40)[0]
    stretch = choosy(attention="continuous", head="gates")({"tokens": tokens})
    assert not stretch.inside.all()
    assert pad(stretch.inside.int(), (1, 1)).diff().abs().sum() == 2
    both = choosy(attention="combined", head="gates")({"tokens": tokens})
    assert both.inside.all()
    assert both.weights.detach().sum() == pytest.approx(1)
    assert not both.selected.all()


def test_words_outside_the_support_hardly_matter_to_local_values():
    torch.manual_seed(0)
    shares = {}
    for values in ("states", "words"):
        model = Reader(DocumentsModel(hidden_dim=4, attention="continuous", head="gates", values=values), torch.eye(9))
        value = torch.randn(1, 300, 8, requires_grad=True)
        context, density = model.attention(value, (torch.tensor([0.5]), torch.tensor([0.01])))
        moved = torch.autograd.grad(context[0, 0], value)[0][0, :, 0].abs()
        outside = ((torch.arange(300) + 0.5) / 300 - 0.5).abs() > density.half_width
        shares[values] = float(moved[outside].sum() / moved.sum())
    assert shares["words"] < 0.05 < shares["states"]


def test_with_words_the_states_only_decide_where_to_look():
    model = reader(attention="discrete", alpha=2.0, values="words")
    tokens = reviews(12)[0]
    reading = model({"tokens": tokens})
    values = model.value(model.embedding(tokens[0]))
    torch.testing.assert_close(reading.logits, model.logit(reading.weights @ values).squeeze(-1))

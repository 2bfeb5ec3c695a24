"""A pretrained BERT is converted: each variant goes on after a crash, and what is measured is counted right."""

import pytest
import torch

pytest.importorskip("transformers")

from here import Here
from noisy import assert_same_end, interrupt
from tiny_bert import HEADS, LAYERS, MAX_TOKENS, tiny_recipe

from contmax.integrations.transformers import AlphaSchedule
from contmax_lab.contract import Batch
from contmax_lab.errors import LabError, UsageError
from contmax_lab.registry import open_trained, shipped_recipes
from contmax_lab.runs import Run
from contmax_lab.tables import Reproduction, reproduce
from contmax_lab.tasks.minilm import MinilmModel
from contmax_lab.tasks.minilm._data import load, prepared
from contmax_lab.tasks.minilm._measures import shortened, spearman
from contmax_lab.tasks.minilm._model import Judge, Student
from contmax_lab.tasks.minilm._task import MINILM, TASK
from contmax_lab.training import train

VARIANTS = [name.partition("/")[2] for name in shipped_recipes() if name.startswith("minilm/")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("minilm")


@pytest.fixture(scope="module")
def splits(folder):
    return load(tiny_recipe(folder, "rising").data)


def judge(splits, **fields) -> Judge:
    torch.manual_seed(0)
    model = Judge(splits.info["pretrained"], MinilmModel(**{"rise": 0.0, **fields}), 100)
    torch.nn.init.normal_(model.logit.weight)
    return model.eval()


def batch_of(splits, *indices) -> Batch:
    return TASK.batch(splits.test, indices)


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_goes_on_to_the_same_bits(folder, tmp_path, monkeypatch, variant):
    """Stopped while α rises, and after it."""
    ends, finish = {}, Run.finish

    def remembered(self, *results, **options):
        ends[self.folder] = self.last_checkpoint()
        finish(self, *results, **options)

    monkeypatch.setattr(Run, "finish", remembered)
    recipe = tiny_recipe(folder, variant, "--training.checkpoint_seconds=0")
    whole, run = Run(tmp_path / "whole"), Run(tmp_path / "run")
    results = train(recipe, whole, test=True)
    for stop in (2, 6):
        with monkeypatch.context() as patch:
            interrupt(patch, stop)
            with pytest.raises(LabError, match="enough"):
                train(recipe, run, resume=True)
    again = train(recipe, run, resume=True, test=True)
    assert_same_end(ends[run.folder], ends[whole.folder])
    assert again["test"] == results["test"]
    assert (results["test"]["zeros"] > 0.05) == (variant != "softmax")
    assert {f"zeros_{layer}" for layer in range(1, LAYERS + 1)} < results["test"].keys()
    trained = open_trained(run.folder)
    assert trained.model.alpha.seen == 72 * results["best_epoch"]
    reached = {"softmax": 1.0, "sparsemax": 2.0}.get(variant, 1.5)
    assert results["test"]["alpha"] == pytest.approx(reached, abs=0.3 if variant == "per-head" else 1e-6)


@pytest.mark.parametrize("variant", ["per-head", "vectors"])
def test_it_trains_in_half_precision(folder, tmp_path, variant):
    """As its recipe says."""
    recipe = tiny_recipe(folder, variant, "--training.epochs=1", "--training.precision=bf16")
    found = train(recipe, Run(tmp_path / "run"), test=True)["test"]
    assert 0.05 < found["zeros"] < 1


def test_alpha_rises_over_the_examples_that_are_seen(splits):
    model = judge(splits, rise=2.0).train()
    batch, schedule = TASK.batch(splits.train, range(10)), AlphaSchedule(1.5, rise=1.0)
    for step in range(25):
        model(batch)
        assert model.bert.config.entmax_alpha == pytest.approx(schedule.alpha_after(10 * step / 200))
    model.eval()(batch)
    model(batch)
    assert model.alpha.seen == 250
    assert model.bert.config.entmax_alpha == 1.5


def test_alpha_of_a_head_is_learned_after_the_rise(splits):
    model = judge(splits, learn_alpha=True, rise=1.0).train()
    groups = TASK.parameter_groups(model)
    assert [group.weight_decay for group in groups] == [None, 0.0, 0.0]
    logits = groups[2].parameters
    assert [tuple(parameter.shape) for parameter in logits] == [(HEADS,)] * LAYERS
    batch = TASK.batch(splits.train, range(10))
    for seen, alpha in ((0, 1.01), (50, 1.25), (100, 1.25)):
        model.alpha.seen = seen
        model(batch)
        assert model.alpha.by_layer().tolist() == pytest.approx([alpha] * LAYERS)
    loss, _ = TASK.loss(model(batch), batch)
    loss.sum().backward()
    assert all(parameter.grad.ne(0).any() for parameter in logits)


def test_an_alpha_that_cannot_be_learned_is_refused(splits):
    with pytest.raises(UsageError, match=r"model\.alpha"):
        judge(splits, learn_alpha=True, alpha=2.0)


def test_at_alpha_one_it_is_the_pretrained_model(folder, splits):
    """Those of transformers, which was given the same weights in half precision, and no entmax."""
    import transformers

    plain = transformers.BertModel.from_pretrained(
        prepared(tiny_recipe(folder, "rising").data), add_pooling_layer=False, attn_implementation="eager"
    )
    tokens = batch_of(splits, 0, 5, 9)["tokens"]
    mask = (tokens > 0).long()
    states = plain.float().eval()(tokens, mask).last_hidden_state
    expected = torch.stack([own[seen.bool()].mean(0) for own, seen in zip(states, mask, strict=True)])
    model = judge(splits, alpha=1.0)
    model.alpha.apply()
    torch.testing.assert_close(model.pooled(tokens), expected)


# -- what is measured --------------------------------------------------------------------------------------------------


def test_padding_never_matters(splits):
    """A review says, weighs and loses the same alone and beside a longer one."""
    short = min(range(30), key=lambda place: int(splits.test.lengths[place]))
    longest = max(range(30), key=lambda place: int(splits.test.lengths[place]))
    for model in (judge(splits), Student(splits.info["pretrained"], MinilmModel(learn="vectors", rise=0.0), 9).eval()):
        alone, beside = (batch_of(splits, *places) for places in ((short,), (short, longest)))
        assert alone["tokens"].shape[1] < beside["tokens"].shape[1]
        one, other = (TASK.measures(model(batch), batch) for batch in (alone, beside))
        for name, values in one.items():
            torch.testing.assert_close(other[name][:1], values, msg=name)


@torch.no_grad()
def test_zeros_are_those_of_each_review_alone(splits):
    model, places = judge(splits, alpha=1.7), range(12)
    batch = batch_of(splits, *places)
    metrics = TASK.summarise(TASK.measures(model(batch), batch))
    zeros, count = torch.zeros(LAYERS), 0
    for place in places:
        review = batch_of(splits, place)["tokens"]
        attentions = model.bert(review[review > 0].unsqueeze(0), output_attentions=True).attentions
        zeros += torch.tensor([float((weights == 0).sum()) for weights in attentions])
        count += attentions[0].numel()
    for layer in range(LAYERS):
        assert metrics[f"zeros_{layer + 1}"] == pytest.approx(float(zeros[layer]) / count)
    assert metrics["zeros"] == pytest.approx(float(zeros.mean()) / count)
    assert 0 < metrics["zeros"] < 1


@torch.no_grad()
def test_the_tokens_that_receive_most_are_deleted(splits):
    model = judge(splits)
    place = int(splits.test.lengths.argmax())
    batch = batch_of(splits, place)
    tokens = [token for token in batch["tokens"][0].tolist() if token]
    weights = model.bert(torch.tensor([tokens]), output_attentions=True).attentions[-1][0].mean((0, 1))
    places, count = range(1, len(tokens) - 1), round(0.2 * (len(tokens) - 2))
    most = sorted(places, key=lambda at: -float(weights[at]))[:count]
    kept = [token for at, token in enumerate(tokens) if at not in most]
    smallest = sorted(places, key=lambda at: float(batch["draws"][0, at]))[:count]
    left = [token for at, token in enumerate(tokens) if at not in smallest]
    assert count > 1

    def positive(numbers):
        return float(model(dict(batch, tokens=torch.tensor([numbers]), draws=torch.zeros(1, len(numbers)))).logits)

    found = shortened(batch["tokens"], model.weighed(batch["tokens"])[1].received, batch["draws"])
    assert found["attended"][0].tolist() == kept
    assert found["random"][0].tolist() == left
    measures = TASK.measures(model(batch), batch)
    whole = torch.tensor(positive(tokens))
    for name, numbers in (("attended", kept), ("random", left)):
        rest = torch.tensor(positive(numbers))
        fall = (whole.abs()).sigmoid() - (whole.sign() * rest).sigmoid()
        assert float(measures[f"fall_without_{name}"]) == pytest.approx(float(fall), abs=1e-6)
        right = float((rest > 0) == (batch["labels"][0] == 1))
        assert float(measures[f"accuracy_without_{name}"]) == right


def test_ranks_of_similarities():
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(40, 2, 3), dim=-1)
    assert spearman(vectors, vectors) == pytest.approx(1.0)
    from scipy.stats import spearmanr

    other = torch.nn.functional.normalize(vectors + 0.5 * torch.randn(40, 2, 3), dim=-1)

    def similarities(found):
        return [float(found[a, 0] @ found[b, 1]) for a in range(40) for b in (a, (a - 20) % 40)]

    expected = spearmanr(similarities(other), similarities(vectors)).statistic
    assert spearman(other, vectors) == pytest.approx(expected)


def test_distillation_brings_the_vectors_back(folder, tmp_path):
    recipe = tiny_recipe(folder, "vectors", "--training.epochs=6", "--training.learning_rate=0.003")
    found = train(recipe, Run(tmp_path / "run"), test=True)["test"]
    assert found["cosine_before"] + 0.02 < found["cosine"] < 1
    assert found["spearman_before"] < found["spearman"]
    assert found["zeros"] > 0.2


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_is_made_in_several_calls(folder, tmp_path):
    recipe = tiny_recipe(folder, "rising")
    small = [f"--data.path={folder}", f"--data.pretrained={recipe.data.pretrained}", "--training.epochs=1"]
    small += [f"--data.max_tokens={MAX_TOKENS}", "--training.precision=no", "--data.limit=6"]
    workers = Here()
    job = Reproduction(TASK, MINILM, tmp_path / "runs", tmp_path / "minilm.json", small, workers)
    text = reproduce(job)
    assert len(workers.begun) == len(MINILM.rows) * 3
    assert "minus Softmax" in text
    vectors = next(line for line in text.splitlines() if line.startswith("| Its own vectors"))
    # There is no accuracy of vectors, and no cosine of labels.
    assert vectors.split("|")[2].strip() == "–"
    assert reproduce(job) == text
    assert len(workers.begun) == len(MINILM.rows) * 3

"""The transformer: said piece by piece or at once, padded or not, softmax or sparse; and that it learns."""

import math

import pytest
import torch
from sentences import padded_and_alone, pairs, tiny_recipe, write_parallel
from torch.nn import functional as F

from contmax_lab.errors import UsageError
from contmax_lab.registry import find_task, open_trained
from contmax_lab.runs import Run
from contmax_lab.tasks.translation import TranslationModel
from contmax_lab.tasks.translation._transformer import Transformer, places
from contmax_lab.training import train

TASK = find_task("translation")
KINDS = [(1.0, False), (1.5, False), (1.5, True)]
SMALL = ("--model.layers=1", "--model.heads=2", "--model.feedforward_dim=16")
kinds = pytest.mark.parametrize(("alpha", "learned"), KINDS, ids=["softmax", "1.5", "learned"])


def transformer(alpha=1.5, learned=False, **fields):
    torch.manual_seed(0)
    sizes = {"embedding_dim": 12, "layers": 2, "heads": 3, "feedforward_dim": 10}
    kind = {"network": "transformer", "attention": "discrete", "alpha": alpha, "learned_alpha": learned}
    return Transformer(TranslationModel(**kind, **sizes, **fields), vocabulary=20).eval().double()


@kinds
def test_one_piece_after_the_other_or_all_at_once(alpha, learned):
    model = transformer(alpha, learned)
    source = torch.tensor([[5, 9, 3, 0], [7, 8, 9, 3]])
    target = torch.tensor([[[2, 6, 11, 4, 3], [2, 7, 7, 13, 3]], [[2, 6, 12, 13, 3], [2, 9, 5, 4, 3]]])
    memory = model.memory(source)
    state = {name: part.expand(-1, 2, *part.shape[2:]) for name, part in model.first(memory).items()}
    found = []
    for pieces in target.unbind(-1)[:-1]:
        logits, state = model.step(pieces, state, memory)
        found.append(logits)
    for hypothesis in (0, 1):
        expected = model({"source": source, "target": target[:, hypothesis]}).logits
        torch.testing.assert_close(torch.stack(found, 2)[:, hypothesis], expected)


@kinds
def test_padding_changes_nothing(alpha, learned):
    together, _ = padded_and_alone(transformer(alpha, learned))
    torch.testing.assert_close(together.look.weights.sum(-1), torch.ones(2, 4, dtype=torch.float64))


def test_softmax_is_that_of_torch():
    """A layer of torch with the same weights, which takes the norms before its parts as well."""
    layer = transformer(1.0).encoder[0]
    theirs = torch.nn.TransformerEncoderLayer(12, 3, 10, 0.0, batch_first=True, norm_first=True).double().eval()
    own = layer.own
    projections = (own.query_projection, own.key_projection, own.value_projection)
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in projections]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in projections]))
    theirs.self_attn.out_proj.load_state_dict(own.output_projection.state_dict())
    for mine, name in ((layer.feed[0], "linear1"), (layer.feed[3], "linear2")):
        getattr(theirs, name).load_state_dict(mine.state_dict())
    for mine, name in zip(layer.norms, ("norm1", "norm2"), strict=True):
        getattr(theirs, name).load_state_dict(mine.state_dict())
    x, mask = torch.randn(2, 5, 12, dtype=torch.float64), torch.arange(5) < torch.tensor([[5], [3]])
    with torch.no_grad():
        found, expected = layer(x, mask), theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(found[mask], expected[mask])


def test_kept_keys_and_values_are_those_of_torchs_attention():
    heads = transformer(1.0).decoder[0].source
    query, source = torch.randn(2, 4, 12, dtype=torch.float64), torch.randn(2, 5, 12, dtype=torch.float64)
    mask = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]
    keys, values = heads.keys_and_values(source)
    found, weights = heads.attended(query, keys, values, mask, need_weights=True)
    asked = heads.as_heads(heads.query_projection(query))
    expected = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask)
    torch.testing.assert_close(found, heads.output_projection(expected.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(weights @ values, expected)
    torch.testing.assert_close(heads(query, source, mask=mask), found)


def test_places_are_waves():
    found = places(3, 2, 5, torch.zeros((), dtype=torch.float64))
    slow = 10000 ** (-2 / 5)
    assert found[1].tolist()[:4] == pytest.approx([math.sin(4), math.cos(4), math.sin(4 * slow), math.cos(4 * slow)])
    assert found.shape == (2, 5)


@kinds
def test_gradients_reach_everything_that_learns(alpha, learned):
    model = transformer(alpha, learned).train()
    batch = {"source": torch.tensor([[5, 9, 8, 3]]), "target": torch.tensor([[2, 6, 7, 3]])}
    losses, _ = TASK.loss(model(batch), batch)
    losses.sum().backward()
    # A number that is added to all keys changes no softmax.
    reached = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 1e-12}
    assert {name for name, _ in model.named_parameters() if "key_projection.bias" not in name} <= reached
    assert any("alpha_logit" in name for name in reached) == learned


def test_it_learns_to_copy_and_looks_at_what_it_copies(tmp_path):
    known = [(source.lower(), source.lower()) for source, _ in pairs(8, 3, longest=3)]
    for name in ("train", "val", "test"):
        write_parallel(tmp_path, name, known)
    changes = {
        "training.epochs": 60,
        "training.evaluate_every": 30,
        "training.learning_rate": 0.01,
        "training.batch_tokens": 300,
        "training.warmup_steps": 20,
        "model.embedding_dim": 32,
        "model.dropout": 0,
        "model.hidden_dropout": 0,
        "model.label_smoothing": 0,
    }
    overrides = [*SMALL, *(f"--{key}={value}" for key, value in changes.items())]
    results = train(tiny_recipe(tmp_path, *overrides, name="translation/transformer"), Run(tmp_path / "run"))
    assert results["valid"]["accuracy"] > 0.97
    assert results["valid"]["bleu"] > 80
    assert results["valid"]["attended"] < 0.9
    trained = open_trained(tmp_path / "run")
    prediction = TASK.predict(trained, known[0][0].split())
    assert prediction.text.splitlines()[0] == known[0][1]
    assert TASK.figures([trained], [0])[0].title == "Attention over sentence 1"


@pytest.mark.parametrize("change", ["alpha=1", "learned_alpha=true"])
def test_one_step_of_every_row(tmp_path, change):
    overrides = [*SMALL, f"--model.{change}", "--data.limit=5", "--training.batch_tokens=0"]
    results = train(tiny_recipe(tmp_path, *overrides, name="translation/transformer"), Run(tmp_path / "run"))
    assert results["steps"] == 1
    assert "bleu" in results["valid"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"attention": "combined"}, "model.attention=discrete"),
        ({"heads": 5}, "a multiple of model.heads"),
        ({"alpha": 1.0, "learned_alpha": True}, "inside"),
    ],
)
def test_what_a_transformer_cannot_be(fields, says):
    model = TranslationModel(**{"network": "transformer", "attention": "discrete", "embedding_dim": 12, **fields})
    with pytest.raises(UsageError, match=says):
        Transformer(model, 20)

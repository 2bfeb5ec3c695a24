"""The benchmark of a small GPT, tried on the CPU: what it times, trains, counts and draws."""

import json
import math

import pytest
import torch
from test_bench_gpu import StandIn

import contmax
from contmax_lab import bench
from contmax_lab.bench import _gpt


@pytest.fixture(scope="module")
def figures():
    return list(_gpt.gpt_figures(bench.QUICK, StandIn(device=(2.0, 3.0, 1.0))))


def test_steps_before_and_after_training_and_the_trainings(figures):
    steps = {figure.column: figure.value for figure in figures if "one step" in figure.table}
    assert steps == {"as initialised, eager": 3.0, "trained, eager": 3.0}
    trained = {figure.row: figure for figure in figures if "trained on text" in figure.table}
    names = ["entmax, half of the heads with ALiBi", "entmax", "softmax", "entmax, α rises from 1"]
    assert list(trained) == [f"B = 2, L = 40, {name}" for name in names]
    for figure in trained.values():
        (point,) = figure.details["curve"]
        assert point["step"] == 3
        assert 7 < point["bits"] == figure.value < 8.5  # a byte has eight
        assert point["seconds"] > 0
    assert trained["B = 2, L = 40, softmax"].details["curve"][0]["support"] == pytest.approx(20.5)


def test_a_token_of_a_long_text_reads_fewer_keys_with_pages(figures):
    steps = {figure.column: figure for figure in figures if "one token in all layers" in figure.table}
    assert {name: figure.value for name, figure in steps.items()} == {"with pages": 2.0, "without pages": 3.0}
    assert all("failed" not in figure.details for figure in steps.values())
    (read,) = [figure for figure in figures if "share of the keys" in figure.table]
    assert 0 < read.value <= 1
    assert read.row == "L = 200"


def test_a_long_text_is_read_in_chunks_as_in_one(monkeypatch):
    """Layers of a model with ALiBi are those of `states`, whatever the chunks; its biases are those of ALiBi."""
    torch.manual_seed(0)
    model, text = _gpt._Gpt(_gpt._SMALL, 40, alibi=True), torch.randint(256, (70,), dtype=torch.uint8)
    whole = _gpt._layers(model, text, 1.5)
    monkeypatch.setattr(_gpt, "_CHUNK", 32)
    for part, expected in zip(_gpt._layers(model, text, 1.5), whole, strict=True):
        for x, y in zip(part, expected, strict=True):
            torch.testing.assert_close(x, y)
    query, key, value, bias = whole[0]
    torch.testing.assert_close(bias[:, 0], torch.stack([torch.arange(-69.0, 1), torch.zeros(70)]))
    block = model.blocks[0]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        (_, x), (_, last) = model.states(text.long().unsqueeze(0), 1.5)
        query, key, value = block.heads_of(x)
        distance = (torch.arange(70).unsqueeze(1) - torch.arange(70)).double()
        slopes = torch.tensor([1.0, 0.0]).view(2, 1, 1)
        scores = query.double() @ key.double().mT / math.sqrt(8) - slopes * distance.abs()
        p = contmax.entmax(scores, 1.5, mask=distance >= 0)
        torch.testing.assert_close(
            last, block.after_attention(x, (p @ value.double()).bfloat16()), atol=2e-2, rtol=2e-2
        )


def test_a_timed_step_moves_no_weight_and_computes_every_gradient():
    torch.manual_seed(0)
    model = _gpt._Gpt(_gpt._SMALL, 40)
    before = [x.clone() for x in model.parameters()]
    seen = []
    for name, x in model.named_parameters():
        x.register_hook(lambda g, name=name: seen.append(name))
    words = torch.randint(256, (2, 41))
    _gpt._step(model, model, words, 1.5)()
    assert set(seen) == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_alpha_is_that_of_the_attention():
    """At α = 1 the loss is that of softmax, and the support of entmax is that of its weights."""
    torch.manual_seed(0)
    model, words = _gpt._Gpt(_gpt._SMALL, 40), torch.randint(256, (1, 41))
    with torch.no_grad():
        for x in model.parameters():
            if x.dim() > 1:
                x.copy_(torch.randn(x.shape) / 4)
        assert not torch.allclose(model(words, 1.0), model(words, 1.5), atol=1e-4)
        assert torch.allclose(model(words, 1.0), model(words, 1 + 1e-6), atol=1e-4)
        (block, x), _ = model.states(words[:, :-1], 1.5)
        query, key, value = block.heads_of(x)
        _, weights = contmax.entmax_attention(query, key, value, is_causal=True, need_weights=True)
    exact = (weights > 0).sum(-1).double().mean()
    assert exact < 20
    assert _gpt._support(model, words, 1.5) == pytest.approx(float(exact), rel=0.02)  # of half precision


def test_alpha_and_the_learning_rate_over_a_training():
    rising = _gpt._RISING
    assert [rising.alpha_at(share) for share in (0.0, 0.15, 0.3, 1.0)] == pytest.approx([1.0, 1.25, 1.5, 1.5])
    rates = [_gpt._rate(step, 100) for step in range(100)]
    assert max(rates) == pytest.approx(1.0)
    assert rates.index(max(rates)) in (4, 5)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
    assert math.isclose(rates[0], 0.2)


def test_the_text_is_that_of_a_library_and_pieces_are_of_it():
    text = _gpt._text("cpu")
    assert len(text) > 10**6
    size = _gpt._Size(3, 50)
    words = _gpt._drawn(text, size, torch.Generator().manual_seed(0))
    assert words.shape == (3, 51)
    assert bytes(words[0].tolist()) in bytes(text.tolist())


def test_the_picture(figures, tmp_path):
    results = {"figures": [figure.as_json() for figure in figures]}
    bench.draw_gpt(json.loads(json.dumps(results)), tmp_path / "gpt.png")
    assert (tmp_path / "gpt.png").read_bytes().startswith(b"\x89PNG")

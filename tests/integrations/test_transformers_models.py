"""Entmax in tiny models of each kind, against the models' own plain attention with softmax replaced in it."""

import pytest
import torch
from tiny_transformers import MODELS, in_double, padded_inputs, second_alone, states, tiny

import contmax

NAMES_OF_QUERIES = ("q_proj", "q_lin", ".q.", "query", "c_attn", "Wqkv")
CAUSAL = ["gpt2", "llama", "qwen2", "qwen3"]


@pytest.fixture(scope="module", autouse=True)
def integration():
    from contmax.integrations import transformers

    transformers.register()
    return transformers


@pytest.fixture
def softmax_is_entmax(monkeypatch):
    def entmax(scores, dim=-1, dtype=None):
        return contmax.entmax(scores, 1.5, dim).to(dtype or scores.dtype)

    monkeypatch.setattr(torch.nn.functional, "softmax", entmax)


def asked(model, inputs, **options):
    with torch.no_grad():
        return model(**inputs, **options)


def real(output, inputs):
    """Without what stands at padding of the sequence that the output is of."""
    kept = inputs.get("decoder_attention_mask", None if "decoder_input_ids" in inputs else inputs.get("attention_mask"))
    return states(output) if kept is None else states(output)[kept.bool()]


@pytest.mark.parametrize("name", MODELS)
def test_as_plain_attention_with_entmax_for_softmax(name, softmax_is_entmax):
    inputs = padded_inputs(name)
    expected = asked(tiny(name, "eager"), inputs, output_attentions=True)
    found = asked(tiny(name), inputs, output_attentions=True)
    assert torch.allclose(real(found, inputs), real(expected, inputs), atol=1e-4)
    kinds = [key for key in expected if key.endswith("attentions") and expected[key]]
    assert len(kinds) == (3 if "decoder_input_ids" in inputs else 1)
    for kind in kinds:
        assert len(found[kind]) == len(expected[kind])
        weights = torch.cat([layer[0].flatten() for layer in found[kind]])
        assert (weights == 0).float().mean() > 0.2
        for layer, wanted in zip(found[kind], expected[kind], strict=True):
            assert torch.allclose(layer[0], wanted[0], atol=1e-5)  # the first sequence has no padding


@pytest.fixture
def calls(monkeypatch):
    """What `entmax_attention` is called with beside the tensors."""
    from contmax.integrations.transformers import _attention

    seen = []

    def attention(*tensors, **options):
        seen.append(options)
        return contmax.entmax_attention(*tensors, **options)

    monkeypatch.setattr(_attention, "entmax_attention", attention)
    return seen


@pytest.mark.parametrize("name", [name for name in MODELS if name != "vit"])
def test_padding_does_not_matter(name):
    model, inputs = tiny(name), padded_inputs(name)
    if name != "gpt_oss":  # whose experts take no float64
        model, inputs = model.double(), in_double(inputs)
    alone = second_alone(inputs)
    expected = states(asked(model, alone))
    assert torch.allclose(states(asked(model, inputs))[1:, : expected.shape[1]], expected, atol=1e-5)
    unmasked = {key: x for key, x in alone.items() if not key.endswith("attention_mask")}
    assert torch.allclose(states(asked(model, unmasked)), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "gpt_oss"])
def test_packed_sequences(name):
    """As a collator gives them that puts all sequences of a batch one after the other."""
    model = tiny(name)
    words = torch.randint(3, 50, (1, 16), generator=torch.Generator().manual_seed(2))
    offsets = torch.tensor([0, 7, 8, 16], dtype=torch.int32)
    lengths = offsets.diff().tolist()
    place = torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0)
    packing = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 8, "max_length_k": 8}
    packed = states(asked(model, {"input_ids": words, "position_ids": place}, **packing))
    alone = [states(asked(model, {"input_ids": part})) for part in words.split(lengths, 1)]
    assert torch.allclose(packed, torch.cat(alone, 1), atol=1e-5)


def test_packed_sequences_are_a_batch_of_one():
    offsets = torch.tensor([0, 7, 16], dtype=torch.int32)
    with pytest.raises(ValueError, match="a batch of 2"):
        tiny("llama")(torch.ones(2, 16, dtype=torch.long), cu_seq_lens_q=offsets, cu_seq_lens_k=offsets)


@pytest.mark.parametrize("name", MODELS)
def test_softmax_at_alpha_one(name, integration):
    model, inputs = tiny(name), padded_inputs(name)
    sparse = real(asked(model, inputs), inputs)
    integration.set_alpha(model, 1.0)
    dense = real(asked(model, inputs), inputs)
    model.set_attn_implementation("eager" if name in ("gemma2", "gpt_oss") else "sdpa")
    assert torch.allclose(dense, real(asked(model, inputs), inputs), atol=1e-5)
    assert not torch.allclose(dense, sparse, atol=1e-2)


@pytest.mark.parametrize("name", MODELS)
def test_one_alpha_per_layer(name, integration, calls):
    model, inputs = tiny(name), padded_inputs(name)
    integration.set_alpha(model, [1.25, 2.0])
    output = asked(model, inputs)
    # An encoder, then a decoder that attends to itself and to the encoder.
    expected = [1.25, 2.0, 1.25, 1.25, 2.0, 2.0] if "decoder_input_ids" in inputs else [1.25, 2.0]
    assert [call["alpha"] for call in calls] == expected
    same = tiny(name, entmax_alpha=[1.25, 2.0])
    assert torch.equal(states(asked(same, inputs)), states(output))


@pytest.mark.parametrize("name", MODELS)
def test_dropout_of_the_model_gradients_for_all_and_no_weights_unasked(name, calls):
    options = {"gpt2": "attn_pdrop", "t5": "dropout_rate"}
    options |= dict.fromkeys(("bert", "roberta", "vit"), "attention_probs_dropout_prob")
    model, inputs = tiny(name, **{options.get(name, "attention_dropout"): 0.25}), padded_inputs(name)
    assert not asked(model, inputs).get("attentions")
    assert {call["dropout_p"] for call in calls} == {0.0}
    calls.clear()
    real(model.train()(**inputs), inputs).square().sum().backward()
    assert {call["dropout_p"] for call in calls} == {0.25}
    assert not any(call["need_weights"] for call in calls)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    scores = [
        p.grad for n, p in model.named_parameters() if any(q in n for q in ("q_", ".q.", "query", "attn", "Wqkv"))
    ]
    assert any(grad.abs().max() > 0 for grad in scores if grad is not None)


@pytest.mark.parametrize("name", CAUSAL)
def test_pieces_with_a_cache_are_the_whole(name):
    model, inputs = tiny(name), padded_inputs(name)
    words = inputs["input_ids"][:1]
    whole = asked(model, {"input_ids": words}).logits
    past, pieces = None, []
    for piece in words.split([4, 3, 1, 1], dim=1):
        output = asked(model, {"input_ids": piece}, past_key_values=past, use_cache=True)
        past = output.past_key_values
        pieces.append(output.logits)
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_gradient_checkpointing_changes_no_gradient(name, integration):
    model, inputs = tiny(name).double().train(), padded_inputs(name)
    integration.make_alpha_learnable(model)
    found = []
    for options in ({}, {"use_cache": False}):
        torch.manual_seed(0)
        real(model(**inputs, **options), inputs).square().sum().backward()
        found.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
        model.zero_grad()
        model.gradient_checkpointing_enable()
    torch.testing.assert_close(*found)
    assert sum("alpha_logit" in key for key in found[0]) == (6 if name == "t5" else 2)

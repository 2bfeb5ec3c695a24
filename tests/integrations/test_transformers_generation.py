"""Generation with entmax: caches of each kind, padding on the left, beams, sampling; and what is refused."""

import pytest
import torch
from tiny_transformers import BERT, MODELS, padded_inputs, tiny

import contmax

CAUSAL = ["gpt2", "llama", "qwen2", "qwen3"]


@pytest.fixture(scope="module", autouse=True)
def integration():
    from contmax.integrations import transformers

    transformers.register()
    return transformers


def generated(model, *, new=8, **options):
    options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(**options)


def padded_left():
    """A sentence of seven words and one of four, and the second alone."""
    words = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(3))
    kept = torch.ones(2, 7, dtype=torch.long)
    kept[1, :3] = 0
    return words.where(kept.bool(), 0), kept, words[1:, 3:]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", CAUSAL)
def test_padding_on_the_left_changes_no_word(name, beams):
    model = tiny(name)
    words, kept, alone = padded_left()
    together = generated(model, input_ids=words, attention_mask=kept, num_beams=beams)
    by_itself = generated(model, input_ids=alone, attention_mask=torch.ones_like(alone), num_beams=beams)
    assert together[1, 3:].tolist() == by_itself[0].tolist()
    assert len(set(by_itself[0, 4:].tolist())) > 2  # else hardly anything could go wrong


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_a_static_cache_is_as_a_dynamic_one(name):
    model = tiny(name)
    words, kept, alone = padded_left()
    for inputs in ({"input_ids": words, "attention_mask": kept}, {"input_ids": alone}):
        dynamic, static = (
            generated(model, **inputs, cache_implementation=kind, output_logits=True, return_dict_in_generate=True)
            for kind in ("dynamic", "static")
        )
        assert torch.equal(dynamic.sequences, static.sequences)
        for a, b in zip(dynamic.logits, static.logits, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(("name", "cache"), [("llama", "static"), ("qwen2", "dynamic")])
def test_the_kernels_for_few_queries_choose_the_same_words(name, cache, request, monkeypatch):
    """In full precision; qwen2 has a layer with a sliding window of four words."""
    model, (words, kept, _) = tiny(name), padded_left()
    options = {"cache_implementation": cache, "output_logits": True, "return_dict_in_generate": True, "new": 2}
    by_torch = generated(model, input_ids=words, attention_mask=kept, **options)
    request.getfixturevalue("triton_takes_cpu_tensors")
    from contmax.kernels import attention

    calls, decoding = [], attention.decoding
    monkeypatch.setattr(attention, "decoding", lambda *given: calls.append(given[1].shape[2]) or decoding(*given))
    by_triton = generated(model, input_ids=words, attention_mask=kept, **options)
    assert torch.equal(by_triton.sequences, by_torch.sequences)
    for ours, theirs in zip(by_triton.logits, by_torch.logits, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
    assert len(calls) == 2 * 2  # layers and words, the prompt of seven words among them


def test_the_first_call_with_a_static_cache_sees_what_is_filled():
    from transformers import StaticCache

    model = tiny("llama")
    words = padded_left()[0][:1]
    with torch.no_grad():
        cache = StaticCache(config=model.config, max_cache_len=20)
        first = model(words[:, :5], past_key_values=cache).logits
        rest = model(words[:, 5:], past_key_values=cache).logits
        assert torch.allclose(torch.cat([first, rest], 1), model(words).logits, atol=1e-4)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["t5", "marian"])
def test_encoders_with_decoders_generate(name, beams):
    model, inputs = tiny(name), padded_inputs(name)
    del inputs["decoder_input_ids"]
    together = generated(model, **inputs, num_beams=beams)
    alone = {key: x[1:, :6] for key, x in inputs.items()}
    assert together[1].tolist() == generated(model, **alone, num_beams=beams)[0].tolist()
    without = generated(model, **alone, num_beams=beams, use_cache=False)
    assert together[1].tolist() == without[0].tolist()


def test_attentions_of_a_generation():
    model = tiny("gpt2")
    words, kept, _ = padded_left()
    output = generated(
        model, input_ids=words, attention_mask=kept, new=3, output_attentions=True, return_dict_in_generate=True
    )
    last = output.attentions[-1][0]
    assert last.shape == (2, 2, 1, 9)
    assert (last[1, ..., :3] == 0).all()
    assert torch.allclose(last.sum(-1), torch.ones(2, 2, 1))


def test_sampling_takes_words_of_positive_probability_only(integration):
    model = tiny("gpt2")
    words = padded_left()[2]
    torch.manual_seed(0)
    output = generated(
        model,
        input_ids=words.expand(200, -1),
        new=1,
        do_sample=True,
        top_k=0,
        logits_processor=[integration.EntmaxLogitsProcessor(1.5)],
        output_logits=True,
        output_scores=True,
        return_dict_in_generate=True,
    )
    probability = contmax.entmax(output.logits[0][0], 1.5)
    possible = set(probability.nonzero().flatten().tolist()) - {2}  # the end is not allowed yet
    drawn = output.sequences[:, -1]
    assert 1 < len(possible) < 50
    assert set(drawn.tolist()) <= possible
    assert set(probability.topk(2).indices.tolist()) <= set(drawn.tolist()) | {2}


def test_logits_become_logarithms_of_their_entmax(integration):
    scores = 3 * torch.randn(4, 30)
    scores[0, :7] = -torch.inf
    for alpha in (1.0, 1.5, 2.0):
        processed = integration.EntmaxLogitsProcessor(alpha)(None, scores)
        assert torch.allclose(processed.softmax(-1), contmax.entmax(scores, alpha), atol=1e-6)
    for alpha in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive"):
            integration.EntmaxLogitsProcessor(alpha)


WITHOUT_ENTMAX = {
    "gpt-j": (
        "GPTJForCausalLM",
        "GPTJConfig",
        {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "rotary_dim": 4},
        "GPTJForCausalLM computes its attention by itself",
    ),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
        "GPTNeoForCausalLM computes its attention by itself",
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", BERT, "FalconForCausalLM computes its attention by itself"),
    "deepseek": ("DeepseekV4ForCausalLM", "DeepseekV4Config", BERT, "DeepseekV4Attention extends masks by itself"),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
        "MambaForCausalLM has no attention",
    ),
}


@pytest.mark.parametrize(("model_name", "config_name", "options", "says"), WITHOUT_ENTMAX.values(), ids=WITHOUT_ENTMAX)
def test_models_without_entmax_are_refused_when_they_are_loaded(model_name, config_name, options, says, tmp_path):
    import transformers

    kind, config = getattr(transformers, model_name), getattr(transformers, config_name)
    special = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = kind(config(**{**options, **special}))
    model.save_pretrained(tmp_path)
    before = model.config._attn_implementation
    for load in (
        lambda: kind._from_config(config(**{**options, **special}), attn_implementation="entmax"),
        lambda: kind.from_pretrained(tmp_path, attn_implementation="entmax"),
        lambda: transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="entmax"),
        lambda: transformers.AutoModelForCausalLM.from_config(
            config(**{**options, **special}), attn_implementation="entmax"
        ),
        lambda: model.set_attn_implementation("entmax"),
    ):
        with pytest.raises(ValueError, match=says) as raised:
            load()
        assert "\n" not in str(raised.value)
    assert model.config._attn_implementation == before


def test_a_part_without_attention_is_no_obstacle():
    """The convolutions of a detector are a model of their own, to which transformers hands the name on."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    seen = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 3}
    config = DetrConfig(backbone_config=seen, use_timm_backbone=False, backbone=None, **sizes, **heads)
    model = DetrForObjectDetection._from_config(config, attn_implementation="entmax").eval()
    assert model(torch.randn(1, 3, 32, 32)).logits.isfinite().all()


def test_refused_paged_caches_and_indexers():
    model = tiny("llama")
    for option, meaning in {"cache": "paged caches", "indices": "indexer"}.items():
        with pytest.raises(ValueError, match=meaning):
            model(torch.tensor([[3, 4, 5]]), **{option: object()})


@pytest.mark.parametrize(
    ("model_name", "config_name", "options"),
    [
        ("BloomModel", "BloomConfig", {"vocab_size": 50, "hidden_size": 16, "n_layer": 1, "n_head": 2}),
        # One of its two kinds of attention follows the interface, the other does not.
        ("LongT5Model", "LongT5Config", MODELS["t5"][2] | {"encoder_attention_type": "local"}),
    ],
)
def test_refused_models_without_the_interface(model_name, config_name, options):
    import transformers

    kind, config = getattr(transformers, model_name), getattr(transformers, config_name)
    with pytest.raises(ValueError, match='would ignore attn_implementation="entmax"'):
        kind._from_config(config(**options), attn_implementation="entmax")
    model = kind(config(**options))
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match="computes its attention by itself"):
        model.set_attn_implementation("entmax")
    assert model.config._attn_implementation == before
    model.set_attn_implementation("eager")


def test_a_window_without_a_mask_and_masks_that_nobody_made():
    model = tiny("qwen2")
    windowed, layer = model.model.layers[1].self_attn, model.model.layers[0].self_attn
    states, turned = torch.randn(1, 9, 16), (torch.ones(1, 9, 4), torch.zeros(1, 9, 4))
    place = torch.arange(9)
    mask = (place <= place[:, None]) & (place > place[:, None] - 4)
    expected = windowed(states, turned, mask[None, None])[0]
    assert torch.allclose(windowed(states, turned, None)[0], expected, atol=1e-6)
    for mask in (torch.ones(1, 9, dtype=torch.bool), torch.ones(1, 1, 9, 9, dtype=torch.long)):
        with pytest.raises(TypeError, match="mask"):
            layer(states, turned, mask)


def test_masks_that_are_added_and_masks_of_ones_own():
    model = tiny("llama")
    words = padded_left()[0][:1]
    allowed = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    allowed[..., 2] = False
    allowed[..., 2, 2] = True
    added = torch.zeros(1, 1, 7, 7).masked_fill(~allowed, torch.finfo(torch.float32).min)
    with torch.no_grad():
        boolean, floating = (model(words, attention_mask=mask, output_attentions=True) for mask in (allowed, added))
        none_of_them = torch.full_like(added, torch.finfo(torch.float32).min)
        nothing = model(words, attention_mask=none_of_them, output_attentions=True)
    assert torch.allclose(boolean.logits, floating.logits, atol=1e-5)
    assert all((layer[~allowed.expand(1, 4, 7, 7)] == 0).all() for layer in floating.attentions)
    assert all((layer == 0).all() for layer in nothing.attentions)
    assert nothing.logits.isfinite().all()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_cache_with_pages_chooses_the_same_words(name, beams, integration, monkeypatch):
    """qwen2 has a layer with a sliding window, whose keys have no pages."""
    model, words = tiny(name), padded_left()[0][:1]
    options = {"num_beams": beams, "output_logits": True, "return_dict_in_generate": True, "new": 20}
    expected = generated(model, input_ids=words, **options)
    calls, attend = [], contmax.attention._certified.attend_certified
    monkeypatch.setattr(
        contmax.attention._entmax_attention, "attend_certified", lambda *given: calls.append(given[1]) or attend(*given)
    )
    cache = integration.KeyPagesCache(model.config)
    skipping = generated(model, input_ids=words, past_key_values=cache, **options)
    assert torch.equal(skipping.sequences, expected.sequences)
    for ours, theirs in zip(skipping.logits, expected.logits, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert len(calls) == (1 if name == "qwen2" else 2) * 20
    for layer in cache.layers:
        pages = getattr(layer.keys, "key_pages", None)
        assert (pages is None) == (
            layer.is_sliding or beams > 1
        )  # beams in a new order make new pages at the next step
        if pages is not None:
            assert torch.equal(pages.low[..., 0, :], layer.keys.amin(-2))
            assert torch.equal(pages.high[..., 0, :], layer.keys.amax(-2))


def test_boxes_follow_a_text_that_is_shortened(integration):
    model, words = tiny("llama"), padded_left()[0][:1]
    cache = integration.KeyPagesCache(model.config)
    model(words, past_key_values=cache)
    cache.crop(-3)
    model(words[:, -2:], past_key_values=cache)
    for layer in cache.layers:
        assert torch.equal(layer.keys.key_pages.low[..., 0, :], layer.keys.amin(-2))

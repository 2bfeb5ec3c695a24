"""Tiny models of `transformers` with random weights, large enough for attention with zeros.

transformers takes seconds to import: it is imported where it is used, so that a process that runs other tests does not.
"""

import torch

WIDTHS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = {"vocab_size": 50, **WIDTHS}
STACKS = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
GROUPED = {**BERT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "pad_token_id": 0}
# Model, configuration, what it is made with.
MODELS = {
    "bert": ("BertModel", "BertConfig", BERT),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    ),
    "roberta": ("RobertaModel", "RobertaConfig", {**BERT, "pad_token_id": 0}),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        {
            **BERT,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "global_attn_every_n_layers": 2,
            "local_attention": 4,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": 2},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    # Scores are capped, and every second layer has a window.
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4},
    ),
    # One score per head takes weight from the keys.
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**GROUPED, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"relative_attention_num_buckets": 8, "decoder_start_token_id": 0},
    ),
    "marian": ("MarianMTModel", "MarianConfig", {**STACKS, "max_position_embeddings": 64}),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**STACKS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32},
    ),
    "vit": ("ViTModel", "ViTConfig", {**WIDTHS, "image_size": 16, "patch_size": 4}),
}


def tiny(name, implementation="entmax", **changed):
    """A model with the same weights for each implementation, whose scores are large enough for zeros."""
    import transformers

    model_name, config_name, options = MODELS[name]
    config = getattr(transformers, config_name)(**{**options, **changed})
    return with_large_weights(
        getattr(transformers, model_name)._from_config(config, attn_implementation=implementation)
    )


def with_large_weights(model):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith("sinks"):
                # T5 does not divide its scores by √d, and its bias needs to matter.
                size = 1.0 if "relative_attention_bias" in name else 0.5
                parameter.copy_(size * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def padded_inputs(name):
    """What a model is called with, the second sequence being shorter; None where a model has no padding."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(3, 50, (2, 9), generator=generator)
    kept = torch.ones(2, 9, dtype=torch.long)
    kept[1, 6:] = 0
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    if name == "whisper":
        heard = torch.randn(2, 8, 20, generator=generator)
        return {"input_features": heard, "decoder_input_ids": words, "decoder_attention_mask": kept}
    inputs = {"input_ids": words.where(kept.bool(), 0), "attention_mask": kept}
    if name in ("t5", "marian"):
        inputs["decoder_input_ids"] = words[:, :5]
    return inputs


def second_alone(inputs):
    """The second sequence without its padding."""
    length = {"input_ids": 6, "attention_mask": 6}
    if "input_features" in inputs:
        length = {"decoder_input_ids": 6, "decoder_attention_mask": 6}
    return {name: x[1:, : length[name]] if name in length else x[1:] for name, x in inputs.items()}


def in_double(inputs):
    return {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}


def states(output):
    """Logits, or the last hidden states."""
    return output.logits if "logits" in output else output.last_hidden_state

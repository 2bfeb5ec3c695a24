"""Model folders: weights, and a card with what the model has to know of the data it was trained on."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from contmax_lab.contract import TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.files import plain, write_atomically, write_json
from contmax_lab.provenance import provenance

_WEIGHTS, _CARD = "model.safetensors", "config.json"


def write_model(
    trained: TrainedRun, known: dict[str, Any], folder: Path, measure: Callable[[nn.Module, str], dict[str, float]]
) -> int:
    """Write model.safetensors and config.json.

    Args:
        trained: the run.
        known: what the model has to know of its data, as JSON.
        folder: made if it does not exist.
        measure: model, part of the data → metrics.

    Returns:
        Bytes written.

    Raises:
        LabError: if a file cannot be written.
    """
    learned = {name for name, _ in trained.model.named_parameters()}
    weights = {
        name: _rounded(tensor) if name in learned else tensor.contiguous().clone()
        for name, tensor in trained.model.state_dict().items()
    }
    # What is written is what is measured; the run that was given stays as it is.
    written = copy.deepcopy(trained.model)
    written.load_state_dict(weights)
    # The test examples are looked at again only where the run was tested.
    parts = ("valid", "test") if trained.results["test"] else ("valid",)
    card = {
        "task": trained.task.name,
        "model": plain(trained.recipe.model),
        "known": known,
        "figures": {part: measure(written, part) for part in parts},
        "trained": {key: trained.results[key] for key in ("examples", "epochs", "best_epoch", "seed")},
        "exported": provenance(("contmax", "torch")),
    }
    write_atomically(folder / _WEIGHTS, safetensors.torch.save(weights))
    write_json(folder / _CARD, card)
    return sum((folder / name).stat().st_size for name in (_WEIGHTS, _CARD))


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a model folder.

    Raises:
        LabError: if there is none.
    """
    try:
        card: dict[str, Any] = json.loads((folder / _CARD).read_text(encoding="utf-8"))
        return {"model": {**card["model"]}, "known": {**card["known"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, error) from None


def read_weights(folder: Path, make: Callable[[], nn.Module]) -> nn.Module:
    """The model of a folder, in evaluation mode.

    Args:
        folder: that `write_model` has made.
        make: a model to put the weights into.

    Raises:
        LabError: if they do not fit.
    """
    try:
        model = make()
        model.load_state_dict(safetensors.torch.load_file(folder / _WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise _unreadable(folder, error) from None
    return model.eval()


def _unreadable(folder: Path, error: Exception) -> LabError:
    return LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}")


def _rounded(tensor: Tensor) -> Tensor:
    """In float16, unless a weight is too large for it."""
    half = tensor.to(torch.float16).contiguous()
    return half if bool(half.isfinite().all()) else tensor.contiguous().clone()

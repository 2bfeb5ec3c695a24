"""Model folders: weights, and a card with what the model has to know of the data it was trained on."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from contmax_lab.checked import Settings, checked_settings
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
    path = folder / _CARD
    try:
        card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"model": {**card["model"]}, "known": {**card["known"]}}
    except FileNotFoundError:
        raise LabError(f"{path}: no such file; make the folder with contmax export RUN") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _unreadable(folder, error) from None


def model_settings(folder: Path, config: type[Settings], values: dict[str, Any]) -> Settings:
    """The settings of the model of a folder.

    Raises:
        LabError: if a model has no such setting, or not with this value.
    """
    try:
        return checked_settings(config, values, "model")
    except LabError as error:
        raise LabError(f"{folder / _CARD}: {error}") from None


def read_weights(folder: Path, make: Callable[[], nn.Module]) -> nn.Module:
    """The model of a folder, in evaluation mode.

    Args:
        folder: that `write_model` has made.
        make: a model to put the weights into.

    Raises:
        LabError: if the file is missing, a weight is not finite, or the weights do not fit the model.
    """
    path = folder / _WEIGHTS
    try:
        weights = safetensors.torch.load_file(path)
        # A model that does not fit may be too large to be made; on the meta device it takes neither time nor memory.
        with torch.device("meta"):
            _require_fit(path, weights, make())
        _require_finite(path, weights)
        model = make()
        model.load_state_dict(weights)
    except FileNotFoundError:
        raise LabError(f"{path}: no such file; make the folder with contmax export RUN") from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise _unreadable(folder, error) from None
    return model.eval()


def _require_fit(path: Path, weights: dict[str, Tensor], model: nn.Module) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise LabError(
                f"{path} does not fit {_CARD}: {name} has shape {found.get(name, 'none')} in the file and "
                f"{wanted.get(name, 'none')} in the model; export the run again"
            )


def _require_finite(path: Path, weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        broken = 0 if not tensor.is_floating_point() else int((~tensor.isfinite()).sum())
        if broken:
            noun = "weight that is" if broken == 1 else "weights that are"
            raise LabError(f"{path}: {name} has {broken} {noun} NaN or infinite; train and export the run again")


def _unreadable(folder: Path, error: Exception) -> LabError:
    return LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}")


def _rounded(tensor: Tensor) -> Tensor:
    """In float16, unless a weight is too large for it."""
    half = tensor.to(torch.float16).contiguous()
    return half if bool(half.isfinite().all()) else tensor.contiguous().clone()

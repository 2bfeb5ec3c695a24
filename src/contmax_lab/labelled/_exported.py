"""Model folders: weights, and a card with what the model has to know of the data it was trained on."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor, nn

from contmax_lab.contract import TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.files import write_atomically, write_json
from contmax_lab.provenance import provenance
from contmax_lab.settings import Settings, checked_settings

_WEIGHTS, _CARD = "model.safetensors", "config.json"
Known = TypeVar("Known")


def write_model(
    trained: TrainedRun,
    card: dict[str, Any],
    folder: Path,
    measure: Callable[[nn.Module, str], dict[str, float]],
    texts: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Write model.safetensors and config.json.

    Args:
        trained: the run.
        card: what config.json says beside the task, the figures and the provenance.
        folder: made if it does not exist.
        measure: model, part of the data → metrics.
        texts: other files, name → content.

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
    # The figures are those of the rounded weights; the model of the run keeps its own.
    written = copy.deepcopy(trained.model)
    written.load_state_dict(weights)
    # The metrics of test examples are computed again only if the run was tested.
    parts = ("valid", "test") if trained.results["test"] else ("valid",)
    figures = {part: measure(written, part) for part in parts}
    write_atomically(folder / _WEIGHTS, safetensors.torch.save(weights))
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    exported = provenance(("contmax", "torch"))
    write_json(folder / _CARD, {"task": trained.task.name, **card, "figures": figures, "exported": exported})
    return sum((folder / name).stat().st_size for name in (_WEIGHTS, _CARD, *texts))


def read_card(folder: Path, understood: Callable[[dict[str, Any]], Known]) -> Known:
    """What a model folder says of itself.

    Args:
        folder: of the model.
        understood: the content of config.json → what is needed of it.

    Raises:
        LabError: if a file is missing, or is not as it should be.
    """
    try:
        return understood(json.loads((folder / _CARD).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise LabError(f"{error.filename}: no such file; make the folder with contmax export RUN") from None
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
    for name, tensor in weights.items():
        broken = 0 if not tensor.is_floating_point() else int((~tensor.isfinite()).sum())
        if broken:
            noun = "weight that is" if broken == 1 else "weights that are"
            raise LabError(f"{path}: {name} has {broken} {noun} NaN or infinite; train and export the run again")


def _unreadable(folder: Path, error: Exception) -> LabError:
    return LabError(f"{folder} holds no model that can be read: {' '.join(str(error).split())}")


def _rounded(tensor: Tensor) -> Tensor:
    """The tensor in float16, or unchanged if a number is too large for float16."""
    half = tensor.to(torch.float16).contiguous()
    return half if bool(half.isfinite().all()) else tensor.contiguous().clone()

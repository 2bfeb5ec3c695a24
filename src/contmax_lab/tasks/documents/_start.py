"""What a reader begins with: the word vectors and the LSTM of a language model of the same reviews."""

from pathlib import Path
from typing import Any

from torch import nn

from contmax_lab.errors import LabError
from contmax_lab.files import read_checkpoint, read_yaml
from contmax_lab.tasks.documents._settings import DocumentsData

_SHARED = ("max_words", "dimensions", "valid", "split")


def take_over(network: nn.Module, start: Path, data: DocumentsData) -> None:
    """Begin with the word vectors and the LSTM of a run of the task language on the same reviews and words.

    Args:
        network: a fresh reader.
        start: folder of the run; its ``config.yaml`` and ``model.safetensors`` are read as plain data.
        data: of the training to come.

    Raises:
        LabError: if there is no such run, or it has read other reviews or words, or has other sizes.
    """
    weights = start / "model.safetensors"
    if not weights.is_file():
        raise LabError(f"--model.start: {start} holds no trained model; make one with contmax train language/imdb")
    begun: dict[str, Any] = read_yaml(start / "config.yaml")
    if begun["task"] != "language":
        raise LabError(f"--model.start: {start} is a run of the task {begun['task']}; pass one of the task language")
    for field in _SHARED:
        theirs, ours = begun["data"].get(field, getattr(DocumentsData(), field)), getattr(data, field)
        # Another split would have read what is held out here; other words have other numbers.
        if theirs != ours:
            raise LabError(
                f"--model.start: {start} was trained with data.{field}={theirs}, but here it is {ours}; use the same"
            )
    own = network.state_dict()
    taken = {
        name: tensor
        for name, tensor in read_checkpoint(weights).tensors.items()
        if name.startswith(("embedding.", "encoder."))
    }
    wrong = [name for name, tensor in taken.items() if name not in own or own[name].shape != tensor.shape]
    if wrong:
        raise LabError(f"--model.start: {start} does not fit ({wrong[0]}); train it with the same hidden_dim")
    network.load_state_dict(taken, strict=False)

"""The task: losses and measures of answers."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributions import Uniform
from torch.nn import functional as F

from contmax.losses import fenchel_young
from contmax_lab.contract import Batch, Splits, Table, Task
from contmax_lab.tasks.places import PlacesData, PlacesModel
from contmax_lab.tasks.places._attention import agreement, looked
from contmax_lab.tasks.places._data import Fixed, Moving, load
from contmax_lab.tasks.places._figures import finding
from contmax_lab.tasks.places._model import Answer, Finder
from contmax_lab.tasks.places._table import CANVAS, PLACES, ROBUST, UTTERANCE


class Places(Task):
    """Find what matters, and say where it was."""

    name = "places"
    summary = "utterances in noise and digits in clutter: is what is attended to where the answer is?"
    data_config = PlacesData
    model_config = PlacesModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    curves = ("loss", "accuracy", "iou")

    def load(self, data: PlacesData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def build(self, model: PlacesModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        info = splits.info
        return Finder(model, info["channels"], info["classes"], info["query_dim"], info["dim"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Training examples at new places, others where they always are."""
        return cast(Moving | Fixed, split).placed(indices)

    def loss(self, output: Answer, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy; where the true span is known, also the Fenchel–Young loss of the density to it."""
        losses = F.cross_entropy(output.logits, batch["label"], reduction="none")
        density = None if output.place is None else output.place.density
        if density is not None and batch["span_known"].any():
            truth = Uniform(batch["low"].squeeze(-1), batch["high"].squeeze(-1))
            losses = losses + output.span_weight * batch["span_known"] * fenchel_young(density, truth)
        return losses, torch.ones_like(losses)

    def measures(self, output: Answer, batch: Batch) -> dict[str, Tensor]:
        """Whether the answer is right, with only and without what was attended to as well; and where that was."""
        label = batch["label"]
        measured = {"accuracy": (output.logits.argmax(-1) == label).float()}
        if output.scene is None or output.place is None:
            return measured
        found = looked(output.scene, output.place)
        measured.update(agreement(found, batch["low"], batch["high"]))
        for name, logits in (("kept_accuracy", output.kept), ("deleted_accuracy", output.deleted)):
            if logits is not None:
                measured[name] = (logits.argmax(-1) == label).float()
        if "other_low" in batch:
            other = agreement(found, batch["other_low"], batch["other_high"])
            measured["chosen"] = (measured["inside"] > other["inside"]).float()
        return measured

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """The means; and how the size of what was attended to goes with that of the truth."""
        metrics = super().summarise(measures)
        if "size" in measures:
            sizes = torch.stack([measures["size"], measures["true_size"]]).double()
            # Sizes that do not vary go with nothing.
            varies = bool((sizes.std(-1) > 1e-9).all())
            metrics["size_correlation"] = float(torch.corrcoef(sizes)[0, 1]) if varies else 0.0
        return metrics

    def tables(self) -> Sequence[Table]:
        """All attentions in all settings; some with other learning and frame rates; and two for the demo."""
        return PLACES, ROBUST, UTTERANCE, CANVAS

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """What is attended to, on the truth."""
        return finding(runs, examples)

    def lengths(self, split: Sized) -> Sequence[int] | None:
        """Of series, the observations; of canvases, nothing."""
        if isinstance(split, Fixed):
            return split.batch["mask"].sum(-1).tolist() if "mask" in split.batch else None
        source = cast(Moving, split).source
        return [len(series) for series in source.series] if hasattr(source, "series") else None


TASK = Places()

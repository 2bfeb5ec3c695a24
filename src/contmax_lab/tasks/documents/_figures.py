"""Where trained models look in some reviews."""

from collections.abc import Sequence
from typing import cast

import torch

from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.labelled import text_figure
from contmax_lab.tasks.documents import DocumentsModel
from contmax_lab.tasks.documents._data import Documents
from contmax_lab.tasks.documents._prepared import FIRST_WORD
from contmax_lab.tasks.documents._reading import Reading

# Reviews with about this many words fit on a page.
_WORDS = 36
_REVIEWS = 4
_NAMES = {"discrete": "discrete", "continuous": "continuous", "combined": "discrete + continuous"}


def attended_words(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Figure]:
    """One picture for each of some reviews of the validation examples, with a panel for each run.

    Args:
        runs: trained on the same data.
        examples: of the validation reviews; by default short ones.
    """
    if not runs:
        return []
    return [_review(runs, place) for place in examples or _chosen(cast(Documents, runs[0].splits.valid))]


def _chosen(documents: Documents) -> list[int]:
    """Reviews of about the right length, positive and negative ones in turn."""
    order = (documents.lengths - _WORDS).abs().argsort(stable=True).tolist()
    labels = documents.labels.tolist()
    sides = [[place for place in order if labels[place] == label] for label in (1, 0)]
    return [place for pair in zip(*sides, strict=False) for place in pair][:_REVIEWS]


def _review(runs: Sequence[TrainedRun], place: int) -> Figure:
    documents = cast(Documents, runs[0].splits.valid)[[place]]
    words = _spelled(documents, runs[0].splits.info["words"])
    readings = [_read(trained, place) for trained in runs]
    panels = [(_title(run.recipe.model, reading), reading) for run, reading in zip(runs, readings, strict=True)]
    truth = "positive" if int(documents.labels) else "negative"
    caption = (
        f"A {truth} review. Bars: weights of discrete attention. Curve: density of continuous attention, per word, "
        "beside bars on the scale to the right; the words it selects are shaded. Words in grey are not attended in the "
        "last panel."
    )
    return text_figure(f"Attention over review {place + 1}", words, panels, caption)


@torch.no_grad()
def _read(trained: TrainedRun, place: int) -> Reading:
    own = cast(Documents, trained.splits.valid)[[place]]
    reading: Reading = trained.model({"tokens": own.padded()})
    return reading


def _spelled(documents: Documents, words: Sequence[str]) -> list[str]:
    numbers: list[int] = documents.padded()[0].tolist()
    return [words[number - FIRST_WORD] if number >= FIRST_WORD else "(unknown)" for number in numbers]


def _title(model: DocumentsModel, reading: Reading) -> str:
    form = {1.0: "softmax", 2.0: "sparsemax"}.get(float(model.alpha), f"α = {model.alpha:g}")
    gates = "" if model.head == "pooled" else f", {model.head}"
    functions = "" if model.attention == "discrete" else f", K = {model.num_basis}{gates}"
    functions += ", words" if model.values == "words" else ""
    return f"{_NAMES[model.attention]} {form}{functions}: {float(reading.logits.sigmoid()):.0%} positive"

"""Where trained models look in texts."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch

from contmax.viz import plot_text_attention
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme, new_axes, picture_width, plain_text
from contmax_lab.labelled import Answer, said, truth
from contmax_lab.tasks.texts._data import Texts

# Texts with about this many words fit on a page.
_WORDS = 36
_TEXTS = 4


@dataclasses.dataclass(frozen=True)
class Looked:
    """What a model says of one text.

    Args:
        title: of its panels.
        answer: of a batch with that text alone.
    """

    title: str
    answer: Answer


def read_texts(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Figure]:
    """One picture for each of some validation texts, with a panel for each head of each run.

    Args:
        runs: trained on the same data.
        examples: of the validation texts; by default those whose length suits a page.
    """
    valid = cast(Texts, runs[0].splits.valid)
    by_length = sorted(range(len(valid)), key=lambda i: abs(len(valid.tokens[i]) - _WORDS))
    return [_figure(runs, place) for place in examples or by_length[:_TEXTS]]


def _figure(runs: Sequence[TrainedRun], place: int) -> Figure:
    valid, info = cast(Texts, runs[0].splits.valid), runs[0].splits.info
    words = [info["spelling"][i] for i in valid.spelled[place].tolist()]
    looked = [_looked(trained, place) for trained in runs]
    label = truth(valid.target[place], info)
    return reading_figure(f"Attention over text {place + 1}", words, looked, f"The label is {label}. ")


@torch.no_grad()
def _looked(trained: TrainedRun, place: int) -> Looked:
    answer: Answer = trained.model(trained.task.batch(trained.splits.valid, [place]))
    return Looked(f"{trained.label}: {said(answer, trained.splits.info)}", answer)


def reading_figure(title: str, words: Sequence[str], looked: Sequence[Looked], about: str = "") -> Figure:
    """A text with a panel for each head.

    Args:
        title: of the figure.
        words: of the text.
        looked: what each model says of it.
        about: the first words of the caption.
    """
    panels = [(each, head) for each in looked for head in each.answer.heads]

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(rows=len(panels), width=picture_width(words), height=1.3)
        for axis, (each, head) in zip(axes, panels, strict=True):
            named = axis is axes[-1]
            plot_text_attention(words, head.weights, head.density, ax=axis, show_tokens=named)
            axis.set_title(plain_text(each.title), loc="left", fontsize=8)
        return figure

    caption = (
        f"{about}Bars: weights of single words. Curve: density over the text, per word, beside bars on the scale to "
        "the right; the words it selects are shaded. One panel for each head. Words in grey are not attended in the "
        "last panel."
    )
    return Figure(title, draw, caption)

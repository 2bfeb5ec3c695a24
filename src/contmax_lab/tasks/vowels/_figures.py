"""Where models listen: weights and densities over the frames of an utterance."""

from collections.abc import Sequence
from typing import Any, cast

import torch

from contmax_lab.attention import Attended
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.data import Utterances
from contmax_lab.drawing import Theme, draw_over_time, draw_series, new_axes

_SPEAKERS = 3


def listening(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> Figure:
    """What each model attends to in some test utterances.

    Args:
        runs: trained on the same data; one row of panels each.
        examples: of the test utterances; by default the longest ones of three speakers.
    """
    test = cast(Utterances, runs[0].splits.test)
    chosen = examples or _longest_of_speakers(test)
    answers = [_answers(trained, chosen) for trained in runs]

    def draw(theme: Theme) -> Any:
        figure, axes = new_axes(len(runs), len(chosen), width=9.3, height=1.45)
        for row, trained in enumerate(runs):
            for column, index in enumerate(chosen):
                axis = axes[row * len(chosen) + column]
                series, attended = test.series[index], answers[row][column]
                time = (torch.arange(len(series)) + 0.5) / len(series)
                draw_series(axis, time, series, theme)
                draw_over_time(axis.twinx(), attended.weights, attended.density, time, theme.colour(row))
                if row == 0:
                    axis.set_title(f"speaker {int(test.speaker[index]) + 1}, {len(test.series[index])} frames")
                if column == 0:
                    axis.set_ylabel(trained.label.replace(" ", "\n"), rotation=0, ha="right", va="center")
                if row + 1 < len(runs):
                    axis.set_xticklabels([])
        for axis in axes[-len(chosen) :]:
            axis.set_xlabel("time, as a share of the utterance")
        return figure

    return Figure(
        "Where the models listen",
        draw,
        f"{'Test utterances' if examples else 'The longest test utterances of three speakers'}: "
        "twelve cepstral coefficients over time (thin lines) "
        "and what each model attends to (colour). Bars are the weights of single frames, curves are densities over "
        "continuous time. Sparse attention is exactly zero outside the shaded interval; the softmax rows give every "
        "moment some weight.",
    )


def _longest_of_speakers(test: Utterances) -> list[int]:
    """Of the first, the last and the middle speaker the longest utterance: a rule, not a choice of pretty ones."""
    speakers = test.speaker.unique().tolist()
    asked = sorted({speakers[0], speakers[len(speakers) // 2], speakers[-1]})[:_SPEAKERS]
    return [
        max((i for i in range(len(test)) if test.speaker[i] == who), key=lambda i: len(test.series[i])) for who in asked
    ]


@torch.no_grad()
def _answers(trained: TrainedRun, chosen: Sequence[int]) -> list[Attended]:
    """One at a time, so that nothing is padded."""
    test = trained.splits.test
    return [trained.model(trained.task.batch(test, [index])).attended for index in chosen]

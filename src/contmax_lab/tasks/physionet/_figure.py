"""One stay, the variables that matter most to the decision, and the hours that the model looks at."""

from collections.abc import Sequence
from typing import Any, cast

import torch

import contmax
from contmax_lab.channels import HOURS, Intervals, hours_of
from contmax_lab.contract import Figure, TrainedRun
from contmax_lab.drawing import Theme
from contmax_lab.packages import require
from contmax_lab.tasks.physionet._reading import VARIABLES
from contmax_lab.tasks.physionet._stays import Stays

# How many variables are drawn, and how many intervals of each.
_MOST, _INTERVALS = 5, 2
_POINTS = 200


def picture(run: TrainedRun, examples: Sequence[int] = ()) -> Figure:
    """Observations of a stay over its hours, and the intervals that the model looks at.

    Args:
        run: a run whose model has intervals.
        examples: the first is drawn; by default a validation stay with many observations whose patient died.
    """
    model, stays = cast(Intervals, run.model), cast(Stays, run.splits.valid)
    counts = stays.cohort.counts.sum(-1)
    stay = examples[0] if examples else int((counts * (stays.cohort.died == 1)).argmax())
    own, _ = stays.cohort.part(torch.tensor([stay]))
    with torch.no_grad():
        probability = float(model(stays.batch([stay])).sigmoid()) if len(stays.signals) else float("nan")
        importance = model.importance()
        seen = own.counts[0] > 1
        chosen = (importance.sum(-1) * seen).topk(min(_MOST, max(int(seen.sum()), 1))).indices.tolist()
        ends = model.interval_hours()
    last = own.last(own.minutes, 0.0)[0] / 60

    def draw(theme: Theme) -> Any:
        pyplot = require("matplotlib.pyplot", "Drawing figures")
        figure, axes = pyplot.subplots(len(chosen), 1, sharex=True, figsize=(7.0, 1.25 * len(chosen)), squeeze=False)
        for axis, variable in zip(axes[:, 0], chosen, strict=True):
            mine = own.variable == variable
            axis.plot(own.minutes[mine] / 60, own.values[mine], ".-", color=theme.soft, linewidth=0.7, markersize=4)
            axis.set_ylabel(VARIABLES[variable])
            axis.set_xlim(0, HOURS)
            heights = axis.twinx()
            heights.set_yticks([])
            for turn, head in enumerate(importance[variable].topk(min(_INTERVALS, model.heads)).indices.tolist()):
                near, far = (float(end) for end in ends[variable, head])
                hours = torch.linspace(near, max(far, near + 1e-3), _POINTS)
                shown = _height(model, variable, head, hours)
                clock = last[variable] - hours
                colour = theme.colour(turn)
                heights.fill_between(clock, 0, shown, color=colour, alpha=0.3, linewidth=0)
                heights.plot(clock, shown, color=colour, linewidth=1)
            heights.set_ylim(0, None)
        axes[-1, 0].set_xlabel("hours since admission")
        figure.align_ylabels(axes[:, 0])
        return figure

    outcome = "died" if int(own.died) else "left hospital alive"
    return Figure(
        "Hours that the model looks at",
        draw,
        f"One stay of the validation part; the model gives a probability of death of {probability:.0%}; the patient "
        f"{outcome}. Dots: what was measured. Colours: the two intervals of each variable that the linear decision "
        "weighs most; outside of them, for α > 1, the density is exactly zero. They lie before the last observation of "
        "the variable, which is why they differ between variables.",
    )


@torch.no_grad()
def _height(model: Intervals, variable: int, head: int, hours: torch.Tensor) -> torch.Tensor:
    """The density per hour, up to a factor, at hours before the last observation."""
    position = torch.log1p(hours) / torch.log1p(torch.tensor(HOURS))
    alpha = float(model.alpha[variable])
    own = contmax.densities.BetaGaussian.from_moments(
        model.location[variable, head], model.scale[variable, head].square(), alpha
    )
    inside = hours < float(hours_of(torch.ones(())))
    return own.density(position) / (1 + hours) * inside

"""Make the table of an experiment, in as many slices as it takes."""

import shlex
from pathlib import Path

from contmax_lab.contract import Experiment
from contmax_lab.errors import Interrupted
from contmax_lab.files import make_folder
from contmax_lab.packages import version
from contmax_lab.provenance import provenance
from contmax_lab.tables._results import printed, summarised, write_results


def run_experiment(experiment: Experiment, runs: Path, output: Path, budget_minutes: float = 0.0) -> str:
    """Train what is missing, write the file of results and, if matplotlib is installed, a picture beside it.

    Args:
        experiment: what to make.
        runs: folder of the cells; those that are done are not trained again.
        output: the file of results.
        budget_minutes: stop cleanly after so long; 0 = no limit.

    Returns:
        The table as text.

    Raises:
        Interrupted: if time was up; the file has what is done.
    """
    table, stopped = experiment.table, None
    make_folder(output.parent)
    try:
        experiment.train(runs, budget_minutes)
    except Interrupted as error:
        stopped = error
    outcomes = list(experiment.outcomes(runs))
    # Cells say where and when they were trained; the table says it of the last one.
    origins = sorted((results["provenance"] for _, results in outcomes), key=lambda origin: str(origin["date"]))
    content = {
        "table": table.name,
        "title": table.title,
        "command": shlex.join(["contmax", "reproduce", table.name]),
        **(origins[-1] if origins else provenance(("contmax", "torch", "triton", "numpy"))),
        "notes": [*table.notes],
        **summarised(table, outcomes),
        "cells": [
            {"row": cell.row.label, "variant": cell.repetition.name, **results["test"], "results": results}
            for cell, results in outcomes
        ],
    }
    write_results(output, content)
    if version("matplotlib"):
        experiment.draw(content, output.with_suffix(".png"))
    if stopped is not None:
        raise stopped
    return printed(content)

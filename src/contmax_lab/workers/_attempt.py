"""What a worker does with a training, on whatever machine."""

import traceback
from typing import Literal

from contmax_lab.contract import Recipe
from contmax_lab.errors import Diverged, Interrupted, LabError
from contmax_lab.runs import Run
from contmax_lab.training import train

# How a training ended, and what is to be said of it: what travels back to where it was ordered.
Verdict = tuple[Literal["done", "diverged", "failed", "stopped"], str]


def attempt(recipe: Recipe, folder: str, *, test: bool) -> Verdict:
    """Train, or go on; whatever happens is returned, since one training that fails must not end the others."""
    try:
        train(recipe, Run(folder), resume=True, test=test)
    except Interrupted as error:
        return "stopped", str(error)
    except Diverged as error:
        return "diverged", str(error)
    except LabError as error:
        return "failed", str(error)
    except Exception as error:  # it may not fit into memory, say
        traceback.print_exc()
        return "failed", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return "done", ""

"""What a worker does with a training, on whatever machine."""

import traceback
from typing import Literal

from contmax_lab.errors import Diverged, Interrupted, LabError
from contmax_lab.runs import Run
from contmax_lab.training import train, train_together
from contmax_lab.workers._crew import Ensemble, Work

# How a training ended, and what is to be said of it: what travels back to where it was ordered.
Verdict = tuple[Literal["done", "diverged", "failed", "stopped"], str]


# What an ensemble keeps in its folder until it is done.
_CHECKPOINT = "ensemble.safetensors"


def attempt(work: Work) -> Verdict:
    """Train, or go on; whatever happens is returned, since one training that fails must not end the others."""
    try:
        if isinstance(work, Ensemble):
            runs = [Run(training.folder) for training in work.runs]
            train_together([training.recipe for training in work.runs], runs, work.folder / _CHECKPOINT)
        else:
            train(work.recipe, Run(work.folder), resume=True, test=work.test)
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

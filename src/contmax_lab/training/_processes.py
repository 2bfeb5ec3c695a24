"""Device, precision and processes."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from contmax_lab.contract import TrainingConfig
from contmax_lab.errors import UsageError
from contmax_lab.launchers import is_one_of_several


def accelerator_for(training: TrainingConfig) -> Accelerator:
    """Device, precision and processes as the recipe and the launcher want them.

    Raises:
        UsageError: if the launcher was asked for several processes, but has started one.
    """
    if is_one_of_several():
        raise UsageError(
            "accelerate launch --cpu has started one process instead of several; use torchrun --nproc-per-node N -m "
            "contmax_lab train …, or accelerate launch --cpu --num_processes N -m contmax_lab train … on one machine"
        )
    # A process may train one recipe after the other, and the first one's precision must not be that of all.
    AcceleratorState._reset_state()
    cpu = training.device == "cpu" or not torch.cuda.is_available()
    return Accelerator(cpu=cpu, mixed_precision=training.precision)

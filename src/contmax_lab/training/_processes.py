"""Device, precision and processes."""

import os

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from contmax_lab.contract import TrainingConfig
from contmax_lab.errors import UsageError


def accelerator_for(training: TrainingConfig) -> Accelerator:
    """Device, precision and processes as the recipe and the launcher want them.

    Raises:
        UsageError: if the launcher was asked for several processes, but has started one.
    """
    # Without mpirun, accelerate launch --cpu starts one process whatever --num_processes says, and tells nobody.
    if "ACCELERATE_USE_CPU" in os.environ and "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        raise UsageError(
            "accelerate launch --cpu has started one process instead of several; use torchrun --nproc-per-node N -m "
            "contmax_lab train …, or accelerate launch --multi_gpu, with --training.device=cpu"
        )
    # A process may train one recipe after the other, and the first one's precision must not be that of all.
    AcceleratorState._reset_state()
    cpu = training.device == "cpu" or not torch.cuda.is_available()
    return Accelerator(cpu=cpu, mixed_precision=training.precision)

"""The dtypes that kernels are written for: known to those who choose a backend, and to the kernels themselves."""

import torch

NUMBA_DTYPES = (torch.float32, torch.float64)
TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

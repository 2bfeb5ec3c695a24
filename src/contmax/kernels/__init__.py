"""Compiled kernels and the one rule that chooses among backends.

Each function returns None where no compiled kernel fits; the caller then runs its torch
reference. Kernels know nothing of the layers above them.
"""

from contmax.kernels._dispatch import plane_means_compiled as plane_means_compiled
from contmax.kernels._dispatch import pull_back as pull_back
from contmax.kernels._dispatch import regularized_argmax as regularized_argmax
from contmax.kernels._dispatch import window_values as window_values
from contmax.kernels._dispatch import window_values_and_slopes as window_values_and_slopes

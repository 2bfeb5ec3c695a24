"""Compiled kernels and the one rule that chooses among backends.

Each function returns None where no compiled kernel fits; the caller then runs its torch
reference. Kernels know nothing of the layers above them.
"""

from contmax._backend import compiler_obstacle as compiler_obstacle
from contmax._backend import triton_kernels as triton_kernels
from contmax._backend import triton_runs_on as triton_runs_on
from contmax._backend import triton_takes as triton_takes
from contmax.kernels.means._cpu_dispatch import line_scale_means as line_scale_means
from contmax.kernels.means._cpu_dispatch import line_scales_are_one_node as line_scales_are_one_node
from contmax.kernels.means._cpu_dispatch import plane_means_compiled as plane_means_compiled
from contmax.kernels.means._cpu_dispatch import window_values as window_values
from contmax.kernels.means._cpu_dispatch import window_values_and_slopes as window_values_and_slopes
from contmax.kernels.means._cpu_dispatch import windows_are_compiled as windows_are_compiled
from contmax.kernels.means._dispatch import any_line_gradients as any_line_gradients
from contmax.kernels.means._dispatch import any_line_values as any_line_values
from contmax.kernels.means._dispatch import line_gradients as line_gradients
from contmax.kernels.means._dispatch import line_values as line_values
from contmax.kernels.means._dispatch import means_are_compiled as means_are_compiled
from contmax.kernels.means._dispatch import plane_gradients as plane_gradients
from contmax.kernels.means._dispatch import plane_values as plane_values
from contmax.kernels.means._dispatch_attention import gate_moments_compiled as gate_moments_compiled
from contmax.kernels.means._dispatch_attention import gate_moments_pulled_back as gate_moments_pulled_back
from contmax.kernels.means._dispatch_attention import gates_are_compiled as gates_are_compiled
from contmax.kernels.means._dispatch_attention import masked_mean_compiled as masked_mean_compiled
from contmax.kernels.means._dispatch_attention import masked_mean_pulled_back as masked_mean_pulled_back
from contmax.kernels.means._dispatch_attention import masked_means_are_compiled as masked_means_are_compiled

"""Compiled kernels and the one rule that chooses among backends.

Each function returns None where no compiled kernel fits; the caller then runs its torch
reference. Kernels know nothing of the layers above them.
"""

from contmax._backend import compiler_obstacle as compiler_obstacle
from contmax._backend import triton_kernels as triton_kernels
from contmax._backend import triton_runs_on as triton_runs_on
from contmax._backend import triton_takes as triton_takes
from contmax.kernels.attention._listed import add_listed_gradients as add_listed_gradients
from contmax.kernels.attention._listed import attention_is_listed as attention_is_listed
from contmax.kernels.attention._listed import listed_means as listed_means
from contmax.kernels.attention._listed import listed_products as listed_products
from contmax.kernels.attention._listed import listed_weights as listed_weights
from contmax.kernels.attention._operators import attention_fused as attention_fused
from contmax.kernels.attention._operators import attention_fused_backward as attention_fused_backward
from contmax.kernels.attention._operators import attention_is_fused as attention_is_fused
from contmax.kernels.attention._options import AttentionOptions as AttentionOptions
from contmax.kernels.attention._options import is_by_distance as is_by_distance
from contmax.kernels.losses._linear import Supports as Supports
from contmax.kernels.losses._linear import class_loss_gradient_in_place as class_loss_gradient_in_place
from contmax.kernels.losses._linear import empty_supports as empty_supports
from contmax.kernels.losses._linear import list_supports as list_supports
from contmax.kernels.losses._linear import support_products as support_products
from contmax.kernels.losses._linear import support_sums as support_sums
from contmax.kernels.losses._linear import supports_are_listed as supports_are_listed
from contmax.kernels.losses._options import LossOptions as LossOptions
from contmax.kernels.losses._soft_operators import soft_loss_fused as soft_loss_fused
from contmax.kernels.losses._soft_operators import soft_loss_fused_backward as soft_loss_fused_backward
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
from contmax.kernels.rows._operators import class_loss_fused as class_loss_fused
from contmax.kernels.rows._operators import class_loss_fused_backward as class_loss_fused_backward
from contmax.kernels.rows._operators import rows_are_fused as rows_are_fused
from contmax.kernels.rows._operators import tensor_or_number as tensor_or_number

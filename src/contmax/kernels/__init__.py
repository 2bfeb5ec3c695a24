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
from contmax.kernels.rows._dispatch import pull_back_compiled as pull_back_compiled
from contmax.kernels.rows._dispatch import regularized_max_compiled as regularized_max_compiled
from contmax.kernels.rows._dispatch import rows_are_compiled as rows_are_compiled
from contmax.kernels.rows._dispatch import rows_are_fused as rows_are_fused
from contmax.kernels.rows._operators import class_loss_fused as class_loss_fused
from contmax.kernels.rows._operators import class_loss_fused_backward as class_loss_fused_backward
from contmax.kernels.rows._operators import entmax_fused as entmax_fused
from contmax.kernels.rows._operators import entmax_fused_backward as entmax_fused_backward
from contmax.kernels.rows._operators import plain_rows_like as plain_rows_like
from contmax.kernels.rows._operators import tensor_or_number as tensor_or_number

"""Kernels for CUDA tensors, written in Triton; imported only when such a tensor is met.

Functions here take plain tensors and launch; they differentiate nothing and check nothing. In Triton's interpreter
(``TRITON_INTERPRET=1`` before triton is imported) they run on CPU tensors, which is how the ordinary tests reach them.
"""

from contmax.kernels.attention._gpu_attention import entmax_attention as entmax_attention
from contmax.kernels.attention._gpu_attention import entmax_attention_backward as entmax_attention_backward
from contmax.kernels.attention._gpu_memory import LIST_CAPACITY as LIST_CAPACITY
from contmax.kernels.attention._gpu_memory import AttentionLists as AttentionLists
from contmax.kernels.attention._gpu_memory import empty_attention_lists as empty_attention_lists
from contmax.kernels.attention._gpu_tuning import widest_head as widest_head
from contmax.kernels.losses._gpu_class_losses import cut_width as cut_width
from contmax.kernels.losses._gpu_class_losses import row_losses as row_losses
from contmax.kernels.losses._gpu_class_losses import row_losses_backward as row_losses_backward
from contmax.kernels.losses._gpu_soft_losses import soft_cut_width as soft_cut_width
from contmax.kernels.losses._gpu_soft_losses import soft_row_losses as soft_row_losses
from contmax.kernels.losses._gpu_soft_losses import soft_row_losses_backward as soft_row_losses_backward
from contmax.kernels.losses._gpu_support_products import list_supports as list_supports
from contmax.kernels.losses._gpu_support_products import support_products as support_products
from contmax.kernels.losses._gpu_support_sums import support_sums as support_sums
from contmax.kernels.means._gpu_gates import gate_moments as gate_moments
from contmax.kernels.means._gpu_gates import gate_moments_backward as gate_moments_backward
from contmax.kernels.means._gpu_line import line_gradients as line_gradients
from contmax.kernels.means._gpu_line import line_values as line_values
from contmax.kernels.means._gpu_line_any import any_line_gradients as any_line_gradients
from contmax.kernels.means._gpu_line_any import any_line_values as any_line_values
from contmax.kernels.means._gpu_masked_mean import masked_mean as masked_mean
from contmax.kernels.means._gpu_masked_mean import masked_mean_backward as masked_mean_backward
from contmax.kernels.means._gpu_plain_contexts import PlainContexts as PlainContexts
from contmax.kernels.means._gpu_plain_contexts import plain_contexts as plain_contexts
from contmax.kernels.means._gpu_plane import plane_gradients as plane_gradients
from contmax.kernels.means._gpu_plane import plane_values as plane_values

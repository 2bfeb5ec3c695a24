"""Kernels for CUDA tensors, written in Triton; imported only when such a tensor is met.

Functions here take plain tensors and launch; they differentiate nothing and check nothing. In Triton's interpreter
(``TRITON_INTERPRET=1`` before triton is imported) they run on CPU tensors, which is how the ordinary tests reach them.
"""

from contmax.kernels.triton._attention import entmax_attention as entmax_attention
from contmax.kernels.triton._attention import entmax_attention_backward as entmax_attention_backward
from contmax.kernels.triton._attention_memory import LIST_CAPACITY as LIST_CAPACITY
from contmax.kernels.triton._attention_memory import AttentionLists as AttentionLists
from contmax.kernels.triton._attention_memory import empty_attention_lists as empty_attention_lists
from contmax.kernels.triton._attention_tuning import widest_head as widest_head
from contmax.kernels.triton._class_losses import cut_width as cut_width
from contmax.kernels.triton._class_losses import row_losses as row_losses
from contmax.kernels.triton._class_losses import row_losses_backward as row_losses_backward
from contmax.kernels.triton._gates import gate_moments as gate_moments
from contmax.kernels.triton._gates import gate_moments_backward as gate_moments_backward
from contmax.kernels.triton._line import line_gradients as line_gradients
from contmax.kernels.triton._line import line_values as line_values
from contmax.kernels.triton._line_any import any_line_gradients as any_line_gradients
from contmax.kernels.triton._line_any import any_line_values as any_line_values
from contmax.kernels.triton._maps import entmax_rows as entmax_rows
from contmax.kernels.triton._maps import entmax_rows_backward as entmax_rows_backward
from contmax.kernels.triton._masked_mean import masked_mean as masked_mean
from contmax.kernels.triton._masked_mean import masked_mean_backward as masked_mean_backward
from contmax.kernels.triton._plain_contexts import PlainContexts as PlainContexts
from contmax.kernels.triton._plain_contexts import plain_contexts as plain_contexts
from contmax.kernels.triton._plain_rows import PlainRows as PlainRows
from contmax.kernels.triton._plain_rows import plain_rows_like as plain_rows_like
from contmax.kernels.triton._plane import plane_gradients as plane_gradients
from contmax.kernels.triton._plane import plane_values as plane_values
from contmax.kernels.triton._soft_losses import soft_cut_width as soft_cut_width
from contmax.kernels.triton._soft_losses import soft_row_losses as soft_row_losses
from contmax.kernels.triton._soft_losses import soft_row_losses_backward as soft_row_losses_backward
from contmax.kernels.triton._support_products import list_supports as list_supports
from contmax.kernels.triton._support_products import support_products as support_products
from contmax.kernels.triton._support_sums import support_sums as support_sums

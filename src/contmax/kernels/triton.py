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
from contmax.kernels.rows._gpu_maps import entmax_rows as entmax_rows
from contmax.kernels.rows._gpu_maps import entmax_rows_backward as entmax_rows_backward
from contmax.kernels.rows._gpu_plain_rows import PlainRows as PlainRows
from contmax.kernels.rows._gpu_plain_rows import plain_rows_like as plain_rows_like

"""Kernels for CUDA tensors, written in Triton; imported only when such a tensor is met.

Functions here take plain tensors and launch; they differentiate nothing and check nothing. In Triton's interpreter
(``TRITON_INTERPRET=1`` before triton is imported) they run on CPU tensors, which is how the ordinary tests reach them.
"""

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

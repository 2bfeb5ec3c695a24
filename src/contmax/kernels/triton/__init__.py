"""Kernels for CUDA tensors, written in Triton; imported only when such a tensor is met.

Functions here take plain tensors and launch; they differentiate nothing and check nothing. In Triton's interpreter
(``TRITON_INTERPRET=1`` before triton is imported) they run on CPU tensors, which is how the ordinary tests reach them.
"""

from contmax.kernels.triton._line import line_gradients as line_gradients
from contmax.kernels.triton._line import line_values as line_values

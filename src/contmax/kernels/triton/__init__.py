"""Kernels for CUDA tensors, written in Triton; imported only when such a tensor is met.

Functions here take plain tensors and launch; they differentiate nothing and check nothing. In Triton's interpreter
(``TRITON_INTERPRET=1`` before triton is imported) they run on CPU tensors, which is how the ordinary tests reach them.
"""

from contmax.kernels.triton._gates import gate_moments as gate_moments
from contmax.kernels.triton._gates import gate_moments_backward as gate_moments_backward
from contmax.kernels.triton._masked_mean import masked_mean as masked_mean
from contmax.kernels.triton._masked_mean import masked_mean_backward as masked_mean_backward

"""The kernels for CPU tensors under the names that callers use."""

from contmax.kernels.attention._cpu_listed import count_rows as count_kernel
from contmax.kernels.attention._cpu_listed import gradient_heads as listed_gradient_kernel
from contmax.kernels.attention._cpu_listed import list_rows as list_kernel
from contmax.kernels.attention._cpu_listed import mean_rows as listed_mean_kernel
from contmax.kernels.attention._cpu_listed import product_rows as listed_product_kernel
from contmax.kernels.rows._cpu_rows import backward_rows as backward_kernel
from contmax.kernels.rows._cpu_rows import forward_rows as forward_kernel

__all__ = [
    "backward_kernel",
    "count_kernel",
    "forward_kernel",
    "list_kernel",
    "listed_gradient_kernel",
    "listed_mean_kernel",
    "listed_product_kernel",
]

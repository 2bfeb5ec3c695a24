"""The kernels for CPU tensors under the names that callers use."""

from contmax.kernels.attention._cpu_listed import count_rows as count_kernel
from contmax.kernels.attention._cpu_listed import gradient_heads as listed_gradient_kernel
from contmax.kernels.attention._cpu_listed import list_rows as list_kernel
from contmax.kernels.attention._cpu_listed import mean_rows as listed_mean_kernel
from contmax.kernels.attention._cpu_listed import product_rows as listed_product_kernel
from contmax.kernels.means._cpu_line_scales import line_scale_rows as line_scale_kernel
from contmax.kernels.means._cpu_plane import plane_rows as plane_kernel
from contmax.kernels.means._cpu_windows import slope_rows as window_slope_kernel
from contmax.kernels.means._cpu_windows import value_rows as window_value_kernel
from contmax.kernels.rows._cpu_rows import backward_rows as backward_kernel
from contmax.kernels.rows._cpu_rows import forward_rows as forward_kernel

__all__ = [
    "backward_kernel",
    "count_kernel",
    "forward_kernel",
    "line_scale_kernel",
    "list_kernel",
    "listed_gradient_kernel",
    "listed_mean_kernel",
    "listed_product_kernel",
    "plane_kernel",
    "window_slope_kernel",
    "window_value_kernel",
]

"""Compiled kernels, in rooms by what they compute: README.md is the map.

`contmax.kernels.rows`, `losses`, `attention` and `means` hold operators and kernels for tensors of the backends that
`contmax._backend.backend_of` returns. Kernels know nothing of the layers above them.
"""

from contmax._backend import compiler_obstacle as compiler_obstacle

"""Compiled kernels, in folders by what they compute: README.md is the map.

`contmax.kernels.rows`, `losses`, `attention` and `means` hold operators and kernels for tensors of the backends that
`contmax._backend.backend_of` returns. Kernels import nothing from the layers above.
"""

from contmax._backend import compiler_obstacle as compiler_obstacle

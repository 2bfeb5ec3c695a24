"""Compiled kernels, in folders by what they compute: README.md is the map.

`contmax.kernels.rows`, `losses`, `attention` and `means` hold operators and their kernels: by Triton for a GPU, by
numba for a CPU, as `contmax._backend.backend_of` chooses. Kernels import nothing from the layers above.
"""

from contmax._backend import compiler_obstacle as compiler_obstacle


def blocks_of(count: int, size: int) -> int:
    """⌈count / size⌉: the number of blocks of `size` elements that hold `count` elements.

    Example:
        >>> blocks_of(9, 4)
        3
    """
    return -(-count // size)


def power_of_two(count: int) -> int:
    """The smallest power of two ≥ `count`, for count ≥ 1.

    Example:
        >>> [power_of_two(n) for n in (1, 2, 5, 64)]
        [1, 2, 8, 64]
    """
    return 1 << (count - 1).bit_length()

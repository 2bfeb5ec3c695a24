"""``python -m contmax.kernels.cpu`` compiles the kernels ahead of their first use and keeps them on disk.

For images and test machines, where otherwise every process that starts before the first one is done compiles them all.
"""

from contmax.kernels._numba_ahead import compile_all

if __name__ == "__main__":
    compile_all()

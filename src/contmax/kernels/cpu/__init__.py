"""What kernels compiled by numba share: threads, vectors, elementary functions."""

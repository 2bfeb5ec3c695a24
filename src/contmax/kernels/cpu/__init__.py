"""Shared code of numba kernels: threads, vectors, elementary functions, disk cache. Importing this imports numba."""

import numba as numba

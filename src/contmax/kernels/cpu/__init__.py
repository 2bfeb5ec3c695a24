"""What kernels compiled by numba share: threads, vectors, elementary functions, a cache. Importing it imports numba."""

import numba as numba

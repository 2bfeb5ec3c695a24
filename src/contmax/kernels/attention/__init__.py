"""Entmax attention of queries to keys: two operators by Triton's kernels, and lists on a CPU by numba's.

`README.md` says how. triton and numba are imported by the first call of a function that needs them.
"""

from contmax.kernels.attention._listed import add_listed_gradients as add_listed_gradients
from contmax.kernels.attention._listed import listed_means as listed_means
from contmax.kernels.attention._listed import listed_products as listed_products
from contmax.kernels.attention._listed import listed_weights as listed_weights
from contmax.kernels.attention._operators import AttentionLists as AttentionLists
from contmax.kernels.attention._operators import AttentionOptions as AttentionOptions
from contmax.kernels.attention._operators import attention as attention
from contmax.kernels.attention._operators import attention_backward as attention_backward
from contmax.kernels.attention._operators import attention_fits as attention_fits
from contmax.kernels.attention._operators import is_by_distance as is_by_distance

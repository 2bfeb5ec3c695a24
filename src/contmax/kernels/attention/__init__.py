"""Entmax attention of queries to keys: four operators that run Triton's kernels; numba's kernels are in `_cpu_listed`.

`README.md` describes the algorithm. triton and numba are imported by the first call that needs them.
"""

from contmax.kernels.attention._operators import AttentionLists as AttentionLists
from contmax.kernels.attention._operators import AttentionOptions as AttentionOptions
from contmax.kernels.attention._operators import Bounded as Bounded
from contmax.kernels.attention._operators import Boxes as Boxes
from contmax.kernels.attention._operators import attention as attention
from contmax.kernels.attention._operators import attention_backward as attention_backward
from contmax.kernels.attention._operators import attention_fits as attention_fits
from contmax.kernels.attention._operators import decoding as decoding
from contmax.kernels.attention._operators import decoding_by_pages as decoding_by_pages
from contmax.kernels.attention._operators import decoding_fits as decoding_fits
from contmax.kernels.attention._operators import is_by_distance as is_by_distance
from contmax.kernels.attention._operators import pages_fit as pages_fit
from contmax.kernels.attention._sizes import PAGES_OF_GROUP as PAGES_OF_GROUP
from contmax.kernels.attention._sizes import ROUNDING_OF_PAGES as ROUNDING_OF_PAGES

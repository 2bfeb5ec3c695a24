"""α-entmax attention of queries to keys: by operations of torch, by lists on a CPU, or by fused kernels on a GPU."""

from contmax.attention._certified import Certificate as Certificate
from contmax.attention._certified import KeyPages as KeyPages
from contmax.attention._entmax_attention import entmax_attention as entmax_attention

"""α-entmax attention of queries to keys: by operations of torch, by lists on a CPU, or by fused kernels on a GPU."""

from contmax.attention._entmax_attention import entmax_attention as entmax_attention
from contmax.attention._key_pages import Certificate as Certificate
from contmax.attention._key_pages import KeyPages as KeyPages

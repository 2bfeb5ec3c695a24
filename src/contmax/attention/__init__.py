"""Attention of queries to keys by α-entmax: whole, in blocks of queries, or fused on a GPU."""

from contmax.attention._entmax_attention import entmax_attention as entmax_attention

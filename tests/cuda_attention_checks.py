"""What tests of attention on a GPU share."""

from contmax import entmax_attention
from cuda_checks import drawn


def attend(alpha=1.5, **options):
    """Attention of query, key and value, and of α where it is the fourth."""
    return lambda q, k, v, *a: entmax_attention(q, k, v, alpha=a[0] if a else alpha, **options)


def triple(heads=2, groups=None, queries=150, keys=200, channels=64, values=64, sharp=1.5):
    """Query, key and value, the same on every device."""
    groups = heads if groups is None else groups
    query = drawn(1, heads, queries, channels, scale=sharp)
    key, value = (drawn(1, groups, keys, n, seed=seed) for n, seed in ((channels, 1), (values, 2)))
    return [query, key, value]

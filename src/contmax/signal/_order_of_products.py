"""In which order a context is multiplied out: H·(G r) or (H G)·r."""


def through_values(length: int, functions: int, channels: int, queries: int) -> bool:
    """Whether for one sequence H·(G r) takes no more multiplications than (H G)·r.

    Args:
        length: L, observations.
        functions: K, basis functions.
        channels: D.
        queries: densities of the sequence.
    """
    return queries * length * (functions + channels) <= functions * channels * (length + queries)

"""Ratios of processor time: contenders take turns, so that what disturbs one repeat disturbs all of them alike."""

import contextlib
import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

Clock = Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Args:
        small: whether suites should take small inputs, to try the harness or a change of code.
        block: seconds of processor time that one timed block of calls lasts at least.
        fewest_rounds: rounds that are always run.
        most_rounds: rounds after which nothing is gained.
        budget: seconds for all rounds of one comparison, between those two bounds.
    """

    small: bool
    block: float
    fewest_rounds: int
    most_rounds: int
    budget: float


THOROUGH = Effort(small=False, block=0.02, fewest_rounds=7, most_rounds=25, budget=8.0)
QUICK = Effort(small=True, block=0.001, fewest_rounds=3, most_rounds=3, budget=0.0)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Time of one contender over that of another, from the ratios of the single rounds.

    Example:
        >>> Ratio.of([2.0, 6.0, 4.0], [1.0, 2.0, 1.0])
        Ratio(median=3.0, minimum=2.0, rounds=3)
    """

    median: float
    minimum: float
    rounds: int

    @classmethod
    def of(cls, numerator: Sequence[float], denominator: Sequence[float]) -> "Ratio":
        """The ratio of two results of `interleaved`, round by round."""
        ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
        return cls(statistics.median(ratios), min(ratios), len(ratios))


def interleaved(
    contenders: Mapping[str, Callable[[], object]], effort: Effort, clock: Clock = time.process_time
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one number per round; in a round each takes one turn, in the given order.

    Args:
        contenders: name → a call without arguments.
        effort: length of a turn and number of rounds.
        clock: processor time by default, which other processes on the machine do not enter.

    Returns:
        name → one time per round, all of the same length. Compare two of them with `Ratio.of`.

    Example:
        >>> times = interleaved({"sum": lambda: sum(range(10)), "max": lambda: max(range(10))}, QUICK)
        >>> [(name, len(seconds)) for name, seconds in times.items()]
        [('sum', 3), ('max', 3)]
    """
    with _no_garbage_collection():
        blocks = {name: _sized_block(call, effort.block, clock) for name, call in contenders.items()}
        rounds = _affordable_rounds(sum(seconds for _, seconds in blocks.values()), effort)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, call in contenders.items():
                times[name].append(_seconds_per_call(call, blocks[name][0], clock))
    return times


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread, and on as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _sized_block(call: Callable[[], object], block: float, clock: Clock) -> tuple[int, float]:
    """How many calls last as long as a block, and how long they last. The first call also compiles: not counted."""
    call()
    calls, elapsed = 1, _block(call, 1, clock)
    while elapsed < block:
        # Short times are badly known: grow at most tenfold at once, and measure again.
        calls = math.ceil(calls * min(10.0, 1.2 * block / max(elapsed, 1e-9)))
        elapsed = _block(call, calls, clock)
    return calls, elapsed


def _seconds_per_call(call: Callable[[], object], calls: int, clock: Clock) -> float:
    # The contender before has emptied the caches. One untimed call fills them; a call that lasts a block by itself
    # has no use for that.
    if calls > 1:
        call()
    return _block(call, calls, clock) / calls


def _block(call: Callable[[], object], calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return clock() - start


def _affordable_rounds(seconds_per_round: float, effort: Effort) -> int:
    return max(effort.fewest_rounds, min(effort.most_rounds, int(effort.budget / seconds_per_round)))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""Targets, and how long each is attacked: hypothesis draws the circumstances, a batch of rows is tried in each."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

# Examples between two looks at the clock; each chunk has a seed of its own, so that it can be run again alone.
CHUNK = 20
# Seconds for making the example of a finding smaller.
SHRINKING = 15.0


@dataclasses.dataclass(frozen=True)
class Target:
    """What is attacked.

    Args:
        name: ``layer.what``.
        check: called with what was drawn; returns how many rows it tried, raises AssertionError on a finding.
        strategies: what to draw, by argument.
    """

    name: str
    check: Callable[..., int]
    strategies: dict[str, Any]


@dataclasses.dataclass
class Outcome:
    """What came of it: counts, and the smallest failing example with the seed that leads to it."""

    target: Target
    examples: int = 0
    rows: int = 0
    seed: int | None = None
    finding: str | None = None


TARGETS: dict[str, Target] = {}


def target(name: str, /, **strategies: Any) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Make a function a target of the campaign."""

    def register(check: Callable[..., int]) -> Callable[..., int]:
        TARGETS[name] = Target(name, check, strategies)
        return check

    return register


def attack(aim: Target, seconds: float, seed: int, examples: int | None = None) -> Outcome:
    """Try inputs until the time is up, `examples` are done, or something is found.

    Args:
        aim: the target.
        seconds: time for it.
        seed: of the first chunk; the next one has the next.
        examples: at most so many, None for no limit.
    """
    outcome, deadline = Outcome(aim), time.monotonic() + seconds
    for number in itertools.count(seed):
        left = CHUNK if examples is None else min(CHUNK, examples - outcome.examples)
        if left <= 0 or time.monotonic() > deadline:
            return outcome
        try:
            _chunk(aim, outcome, number, left, deadline)
        except (Exception, _SmallEnough) as error:
            outcome.seed = number
            # The example was written down when it was found; else hypothesis itself has something to say.
            outcome.finding = outcome.finding or f"{type(error).__name__}: {error}"
            return outcome
    return outcome


class _SmallEnough(BaseException):
    """Ends the search for a smaller example; hypothesis lets it pass."""


def _chunk(aim: Target, outcome: Outcome, seed: int, examples: int, deadline: float) -> None:
    enough = float("inf")

    def body(**drawn: Any) -> None:
        nonlocal enough
        now = time.monotonic()
        if now > enough:
            raise _SmallEnough
        # What was found is made small whatever the time; else the rest of a chunk is not tried any more.
        if outcome.finding is None and now > deadline:
            return
        outcome.examples += 1
        try:
            outcome.rows += aim.check(**drawn)
        except Exception as error:
            # Every example that fails from now on is a smaller one.
            enough = min(enough, now + SHRINKING)
            where = ", ".join(f"{name}={value!r}" for name, value in drawn.items())
            outcome.finding = f"{type(error).__name__}: {error}\n  drawn: {where}"
            raise

    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    hypothesis.seed(seed)(settings(hypothesis.given(**aim.strategies)(body)))()


def campaign(aims: list[Target], seconds: float, seed: int, examples: int | None = None) -> Iterator[Outcome]:
    """Attack one target after the other; time that one does not need goes to those that are left."""
    deadline = time.monotonic() + seconds
    for place, aim in enumerate(aims):
        share = (deadline - time.monotonic()) / (len(aims) - place)
        yield attack(aim, max(share, 0.0), seed, examples)


def as_table(outcomes: list[Outcome]) -> str:
    """Target · examples · rows · findings, with a line of sums."""
    lines = [("target", "examples", "rows", "findings")]
    lines += [(o.target.name, f"{o.examples:,}", f"{o.rows:,}", "1" if o.finding else "–") for o in outcomes]
    sums = (sum(o.examples for o in outcomes), sum(o.rows for o in outcomes), sum(bool(o.finding) for o in outcomes))
    lines.append(("all", *(f"{value:,}" for value in sums)))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        " · ".join([line[0].ljust(widths[0]), *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )

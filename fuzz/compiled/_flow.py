"""Which decisions of a kernel depend on a sum that the threads of a warp may disagree on.

A reduction over the threads of a warp is a butterfly: two threads exchange their partial sums s and s′ by a shuffle,
one computes s + s′ and the other s′ + s, which is the same number. Where s = a·b and s′ = a′·b′, a compiler may
contract the product of a thread into its addition. Then one computes fma(a, b, s′) and the other fma(a′, b′, s): each
rounds only the product that it sends, and the sums differ by an ulp. If such a sum decides a branch, the threads of a
warp part there, and wait for each other for ever.

Hence the rule, for PTX and for SASS: no fused multiply-add that reads the result of a butterfly shuffle reaches a
predicate that decides a branch, an exit, or whether a thread takes part in a barrier or in another shuffle. In a launch
that allows contraction no addition does either, because the next version of the compiler may contract it. After the
last barrier or shuffle of a kernel no thread waits for another, and threads may part.

Only butterflies count. Triton changes layouts by shuffles of another kind (idx), and scans by a third (up): there no
two threads compute one number from exchanged operands.

Dependence is followed through registers, predicates, and the stack slots where the assembler keeps registers. It is not
followed through shared and global memory, where all threads that read an address get the same number.
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterator


class Kind(enum.Enum):
    """How the results of an instruction depend on its operands."""

    BUTTERFLY = "a number from another thread, which gets ours in exchange"
    MOVE = "an operand in another register or format"
    FUSED = "a product and a sum of floats, rounded once"
    ADDED = "a sum of floats"
    VOTE = "the same number in all threads, whatever their operands"
    OTHER = "any other function of the operands"


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of PTX or SASS.

    Args:
        text: as it was read.
        place: the line in Python that it comes from, empty if unknown.
        writes: registers, predicates and stack slots that it writes.
        reads: those that it reads, the guard among them.
        kind: how the former depend on the latter.
        is_guarded: whether a thread may leave it out, so that what was written before may stay.
        decides: whether what it reads decides where threads go on, or which of them take part in an exchange.
        waits: whether the threads that take part wait for each other.
        targets: labels at which threads may go on.
        goes_on: whether threads may go on with the next instruction.
        calls: whether its target is a function, after which threads go on with the next instruction.
        returns: whether it is the end of such a function.
    """

    text: str
    place: str
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    kind: Kind = Kind.OTHER
    is_guarded: bool = False
    decides: bool = False
    waits: bool = False
    targets: tuple[str, ...] = ()
    goes_on: bool = True
    calls: bool = False
    returns: bool = False


@dataclasses.dataclass
class Code:
    """Instructions in their order, and the number of the one after each label."""

    instructions: list[Instruction] = dataclasses.field(default_factory=list)
    labels: dict[str, int] = dataclasses.field(default_factory=dict)

    def count(self, kind: Kind) -> int:
        """How many instructions are of one kind."""
        return sum(each.kind is kind for each in self.instructions)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A sum over the threads of a warp, and a decision that depends on it."""

    sum: Instruction
    decision: Instruction

    def __str__(self) -> str:
        does = "contracts a product into" if self.sum.kind is Kind.FUSED else "allows contraction of"
        return (
            f"`{self.sum.text}` ({self.sum.place}) {does} a sum over the threads of a warp, "
            f"which decides `{self.decision.text}` ({self.decision.place})"
        )


# Where threads go on after the functions that they are in.
_Returns = tuple[int, ...]


class _State:
    """What is known before an instruction.

    Args:
        kinds: of instructions that make a doubtful sum of the result of a butterfly.
        exchanged: registers that hold such a result.
        doubtful: registers that depend on such a sum, with the number of the first instruction that makes it.
    """

    def __init__(self, kinds: tuple[Kind, ...], exchanged: set[str], doubtful: dict[str, int]) -> None:
        self.kinds, self.exchanged, self.doubtful = kinds, exchanged, doubtful

    def copy(self) -> "_State":
        return _State(self.kinds, self.exchanged.copy(), self.doubtful.copy())

    def join(self, other: "_State") -> bool:
        """Let what holds in the other hold here too; whether that is more than before."""
        changed = not other.exchanged <= self.exchanged
        self.exchanged |= other.exchanged
        for register, first in other.doubtful.items():
            if first < self.doubtful.get(register, first + 1):
                self.doubtful[register], changed = first, True
        return changed

    def step(self, number: int, instruction: Instruction) -> int | None:
        """Learn what holds after an instruction; the number of the doubtful sum that one of its operands depends on."""
        reads, kind = instruction.reads, instruction.kind
        exchanged = kind is Kind.BUTTERFLY
        if not (exchanged or self.exchanged or self.doubtful):
            return None
        origin = min((self.doubtful[register] for register in reads if register in self.doubtful), default=None)
        after = origin
        if kind is Kind.VOTE:
            after = None
        elif self.exchanged and not self.exchanged.isdisjoint(reads):
            exchanged |= kind is Kind.MOVE
            if kind in self.kinds:
                after = number if origin is None else min(origin, number)
        for register in instruction.writes:
            if exchanged:
                self.exchanged.add(register)
            else:
                # Also under a guard: a register that may hold either of two numbers is a selection of them.
                self.exchanged.discard(register)
            if not instruction.is_guarded:
                self.doubtful.pop(register, None)
            if after is not None:
                self.doubtful[register] = min(after, self.doubtful.get(register, after))
        return origin


def findings(code: Code, *, any_sum: bool = False) -> list[Finding]:
    """The decisions that depend on a contracted sum over threads, or on any such sum, each with the first of these."""
    if not code.count(Kind.BUTTERFLY):
        return []
    ends, can_hang = dict(_blocks(code)), _before_a_wait(code)
    # What holds before a block, and for one inside of a function, for each place from which that was called.
    start: tuple[int, _Returns] = (0, ())
    before = {start: _State((Kind.FUSED, Kind.ADDED) if any_sum else (Kind.FUSED,), set(), {})}
    found: dict[int, int] = {}
    waiting = [start]
    while waiting:
        first, returns = waiting.pop()
        state = before[first, returns].copy()
        for number in range(first, ends[first]):
            origin = state.step(number, code.instructions[number])
            if origin is not None and code.instructions[number].decides and can_hang[number]:
                found[number] = origin
        for following in _next(code, ends[first] - 1, returns):
            if following not in before:
                before[following] = state.copy()
                waiting.append(following)
            elif before[following].join(state):
                waiting.append(following)
    return [Finding(code.instructions[first], code.instructions[number]) for number, first in sorted(found.items())]


def _before_a_wait(code: Code) -> list[bool]:
    """Of each instruction, whether threads wait for each other there, or anywhere after it."""
    waits = [each.waits or each.returns for each in code.instructions]  # after a return is wherever it was called
    changed = True
    while changed:
        changed = False
        for number in range(len(waits) - 1, -1, -1):
            if not waits[number] and any(waits[following] for following, _ in _next(code, number, ())):
                waits[number] = changed = True
    return waits


def _blocks(code: Code) -> Iterator[tuple[int, int]]:
    """Stretches of instructions that threads enter at the first and leave after the last."""
    starts = {0, *code.labels.values()}
    starts |= {n + 1 for n, each in enumerate(code.instructions) if each.targets or not each.goes_on}
    ends = [*sorted(start for start in starts if start < len(code.instructions)), len(code.instructions)]
    return itertools.pairwise(ends)


def _next(code: Code, last: int, returns: _Returns) -> list[tuple[int, _Returns]]:
    """Where threads may go on after the last instruction of a block."""
    instruction = code.instructions[last]
    following = [(returns[-1], returns[:-1])] if instruction.returns and returns else []
    of_targets = (*returns, last + 1) if instruction.calls else returns
    following += [(code.labels[target], of_targets) for target in instruction.targets]
    following += [(last + 1, returns)] if instruction.goes_on else []
    return [(first, after) for first, after in following if first < len(code.instructions)]

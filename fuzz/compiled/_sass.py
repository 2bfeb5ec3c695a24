"""SASS, as nvdisasm writes it, read as instructions with their operands."""

import re

from fuzz.compiled._flow import Code, Instruction, Kind

_PLACE = re.compile(r'\s*//## File "(?:.*/)?([^"]*)", line (\d+)')
_LABEL = re.compile(r"([.$\w]+):\s*")
_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+((?:@!?(U?P[T\d])\s+)?([A-Z][\w.]*)\s*([^;]*?))\s*;")
_OPERANDS = re.compile(r"(?:\[[^]]*\]|`\([^)]*\)|[^,[`])+")
_REGISTER = re.compile(r"\b(?:(U?R)(\d+)(\.64)?|(U?P\d)\b)")
_PREDICATE = re.compile(r"!?U?P[T\d]")
_RESULT = re.compile(r"U?R(?:\d+|Z)")
_TARGET = re.compile(r"`\((.*)\)")
_SLOT = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")
_TILE = re.compile(r"\.64x(\d+)x")
# A number of another thread in another register or format is still its own. One that was selected is not: the larger
# of two doubles takes a comparison and two selections, and is the same number in both threads.
_MOVES = ("MOV", "UMOV", "IMAD.MOV", "IMAD.U32", "IMAD.SHL", "PRMT", "SHF", "LOP3", "R2UR", "F2F", "F2FP", "HADD2.F32")
_MOVES += ("STL", "LDL")
_FUSED = ("FFMA", "FFMA2", "FFMA32I", "HFMA2", "DFMA")
_ADDED = ("FADD", "FADD2", "FADD32I", "HADD2", "DADD")
_VOTES = ("VOTE", "VOTEU", "REDUX")
# Threads that leave one of these out keep the others waiting.
_TOGETHER = ("BAR", "SHFL", "MATCH", "WARPSYNC", "BSYNC", "HMMA", "HGMMA", "LDSM", "STSM", *_VOTES)
_LEAVING = ("BRA", "EXIT", "RET", "CALL", "BREAK")
_NOT_READ = ("BRX", "BRXU", "JMP", "JMX", "JMXU", "LEPC")
_WITHOUT_RESULT = ("BAR", "BSSY", "BSYNC", "WARPSYNC", "DEPBAR", "NANOSLEEP", *_LEAVING)


def read_sass(text: str) -> Code:
    """The instructions of one kernel, and of the functions that it calls."""
    code, place = Code(), ""
    for line in text.splitlines():
        if read := _LINE.match(line):
            code.instructions.append(_instruction(*read.groups(), place))
        elif located := _PLACE.match(line):
            place = f"{located[1]}:{located[2]}"
        elif labelled := _LABEL.fullmatch(line):
            code.labels[labelled[1]] = len(code.instructions)
    if not code.instructions:
        raise ValueError("There is no instruction in this text; pass what `nvdisasm -c -g` writes of a cubin.")
    return code


def _instruction(text: str, guard: str | None, opcode: str, rest: str, place: str) -> Instruction:
    base = opcode.partition(".")[0]
    if base in _NOT_READ or opcode.startswith("CALL.ABS"):
        raise ValueError(f"`{text}` ({place}): where it leads is not known to this reader of SASS.")
    operands = [operand.strip() for operand in _OPERANDS.findall(rest)]
    writes, reads = _effects(opcode, base, operands)
    leaves = base in _LEAVING
    return Instruction(
        " ".join(text.split()),
        place,
        writes=writes,
        reads=(guard, *reads) if guard else reads,
        kind=_kind(opcode, base, operands),
        is_guarded=guard is not None,
        # A branch may have predicates among its operands, beside its guard.
        decides=leaves or (guard is not None and base in _TOGETHER),
        waits=base in _TOGETHER,
        targets=tuple(_TARGET.findall(operands[-1])) if base in ("BRA", "CALL") else (),
        goes_on=guard is not None or not leaves or base == "BREAK" or (base == "BRA" and len(operands) > 1),
        returns=base == "RET",
        calls=base == "CALL",
    )


def _effects(opcode: str, base: str, operands: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an instruction writes and reads."""
    results = _results(base, operands)
    writes = _registers(operands[:results], _width(opcode, base))
    reads = _registers(operands[results:], _read_width(opcode, base))
    if base in ("P2R", "R2P"):  # between the predicates that a mask names and the bits of a register
        predicates = tuple(f"P{i}" for i in range(7) if int(operands[-1], 16) >> i & 1)
        return (writes, (*reads, *predicates)) if base == "P2R" else (predicates, reads)
    slot = _SLOT.search(" ".join(operands)) if base in ("STL", "LDL") else None
    if slot is not None:  # where the assembler keeps what it has no register for
        kept = tuple(f"slot{int(slot[1] or '0', 16) + 4 * i}" for i in range(_width(opcode, base)))
        return (kept, reads) if base == "STL" else (writes, kept)
    return writes, reads


def _results(base: str, operands: list[str]) -> int:
    """How many operands, from the first on, are written."""
    if base in _WITHOUT_RESULT or base == "R2P":
        return 0
    if base in _VOTES:
        return len(operands) - 1
    if base.endswith(("SETP", "SETP2", "PLOP3")):
        return 2
    # Predicates, if any, then a register, then predicates for what is carried.
    count, has_register = 0, False
    for operand in operands:
        if not _PREDICATE.fullmatch(operand):
            if has_register or not _RESULT.fullmatch(operand):
                break
            has_register = True
        count += 1
    return count


def _registers(operands: list[str], width: int) -> tuple[str, ...]:
    found: list[str] = []
    for name, number, is_pair, predicate in _REGISTER.findall(" ".join(operands)):
        neighbours = range(int(number), int(number) + max(width, 2 if is_pair else 1)) if name else ()
        found += [f"{name}{i}" for i in neighbours] if name else [predicate]
    return tuple(found)


def _width(opcode: str, base: str) -> int:
    """Registers of 32 bits in a result."""
    modifiers = opcode.split(".")[1:]
    if base == "HGMMA":  # of a tile of 64 rows, spread over 128 threads
        tile = _TILE.search(opcode)
        return int(tile[1]) // 2 if tile else 128
    if base == "HMMA" or "128" in modifiers or (base == "LDSM" and "4" in modifiers):
        return 4
    is_wide = base in ("DFMA", "DADD", "DMUL", "DMNMX") or "WIDE" in modifiers or "64" in modifiers
    is_wide |= (base == "CS2R" and "32" not in modifiers) or (base == "LDSM" and "2" in modifiers)
    is_wide |= opcode.startswith(("F2F.F64", "I2F.F64", "F2I.U64", "F2I.S64"))
    return 2 if is_wide else 1


def _read_width(opcode: str, base: str) -> int:
    """Registers of 32 bits in an operand, or more: one that is not read may only cause a false alarm."""
    if base == "DSETP" or any(modifier in ("F64", "U64", "S64") for modifier in opcode.split(".")[1:]):
        return 2
    return _width(opcode, base)


def _kind(opcode: str, base: str, operands: list[str]) -> Kind:
    if opcode.startswith("SHFL.BFLY"):
        return Kind.BUTTERFLY
    if base in _FUSED and not any(operand in ("1", "-1") for operand in operands[1:-1]):  # ±x needs no rounding
        return Kind.FUSED
    is_negation = base == "FADD" and any(operand.lstrip("-") == "RZ" for operand in operands[1:])
    if is_negation or base in _MOVES or opcode.startswith(_MOVES):
        return Kind.MOVE
    if base in _FUSED or base in _ADDED:
        return Kind.ADDED
    return Kind.VOTE if base in _VOTES else Kind.OTHER

"""PTX of a kernel, the compiler's own and that of inline assembly, read as instructions with their operands."""

import re

from fuzz.compiled._flow import Code, Instruction, Kind

_BODY = re.compile(r"\.entry.*?^\{$(.*?)^\}$", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"\s*\.loc\s[^/]*(?://\s*(.*))?")
_LABEL = re.compile(r"\s*([$\w]+):\s*(?://.*)?")
_GUARD = re.compile(r"@!?([%\w$]+)\s+")
_OPERANDS = re.compile(r"(?:\{[^}]*\}|\[[^]]*\]|\([^)]*\)|[^,{[(])+")
_WORD = re.compile(r"%?[A-Za-z_$][\w$]*")
# A number of another thread in another register or format is still its own. One that was selected is not: the larger
# of two numbers, say, is the same in both threads.
_MOVES = ("mov", "cvt", "prmt", "neg", "abs", "shl", "shr", "and", "bfe")
_VOTES = ("vote", "redux", "bar.red", "barrier.cta.red")
# Threads that leave one of these out keep the others waiting.
_TOGETHER = ("bar", "barrier", "shfl", "vote", "redux", "match", "mma", "wgmma", "ldmatrix", "stmatrix")
_WITHOUT_RESULT = ("st", "red", "bra", "ret", "exit", "trap", "stmatrix", "membar", "fence")


def read_ptx(text: str) -> Code:
    """The instructions of the one kernel of a module."""
    body = _BODY.search(text)
    if body is None:
        raise ValueError("There is no kernel (.entry) in this PTX; pass the text of the module that Triton compiled.")
    code, place, started = Code(), "", ""
    names: set[str] = set()  # registers of inline assembly have no percent sign: they are known by their declaration
    for line in body[1].splitlines():
        if located := _PLACE.match(line):
            place = located[1] or ""
        elif labelled := _LABEL.fullmatch(line):
            if code.labels.setdefault(labelled[1], len(code.instructions)) != len(code.instructions):
                raise ValueError(f"The label {labelled[1]} stands twice in this PTX: where branches lead is not known.")
        else:
            *statements, started = (started + " " + line.partition("//")[0]).split(";")
            for statement in statements:
                statement = " ".join(statement.strip("{} \t").split())
                if statement.startswith(".reg") and "<" not in statement:
                    names.update(_WORD.findall(statement)[2:])
                elif statement and not statement.startswith("."):
                    code.instructions.append(_instruction(statement, place, names))
    return code


def _instruction(text: str, place: str, names: set[str]) -> Instruction:
    guard = _GUARD.match(text)
    opcode, _, rest = text[guard.end() if guard else 0 :].partition(" ")
    base = opcode.partition(".")[0]
    operands = [operand.strip() for operand in _OPERANDS.findall(rest)]
    has_result = bool(operands) and base not in _WITHOUT_RESULT and not operands[0].startswith("[")
    writes = _registers(operands[:1], names) if has_result else ()
    # The accumulator of a matrix product is an operand too.
    reads = _registers(operands[1 if has_result and base != "wgmma" else 0 :], names)
    leaves = base in ("bra", "brx", "ret", "exit", "trap", "call")
    if base in ("brx", "call"):
        raise ValueError(f"`{text}` ({place}): where it leads is not known to this reader of PTX.")
    return Instruction(
        text,
        place,
        writes=writes,
        reads=(guard[1], *reads) if guard else reads,
        kind=_kind(opcode, base, operands),
        is_guarded=guard is not None,
        decides=guard is not None and (leaves or base in _TOGETHER),
        waits=base in _TOGETHER,
        targets=tuple(operands[:1]) if base == "bra" else (),
        goes_on=guard is not None or not leaves,
    )


def _registers(operands: list[str], names: set[str]) -> tuple[str, ...]:
    words = (word for operand in operands for word in _WORD.findall(operand))
    return tuple(word for word in words if word.startswith("%") or word in names)


def _kind(opcode: str, base: str, operands: list[str]) -> Kind:
    if opcode.startswith("shfl.sync.bfly"):
        return Kind.BUTTERFLY
    if base in _MOVES:
        return Kind.MOVE
    # 0f3F800000 and 0fBF800000 are ±1, whose product needs no rounding.
    is_fused = base == "fma" or (base == "mad" and ".f" in opcode)
    if is_fused and not any(operand.lower() in ("0f3f800000", "0fbf800000") for operand in operands[1:3]):
        return Kind.FUSED
    if is_fused or (base in ("add", "sub") and re.search(r"\.b?f\d", opcode)):
        return Kind.ADDED
    return Kind.VOTE if opcode.startswith(_VOTES) else Kind.OTHER

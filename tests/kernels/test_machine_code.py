"""The readers of PTX and SASS, and the way of a contracted sum to a branch, on a few lines written by hand."""

import pytest
from fuzz.compiled._flow import Kind, findings
from fuzz.compiled._ptx import read_ptx
from fuzz.compiled._sass import read_sass

# A contracted reduction: in a register of PTX, and in one of SASS.
PTX_SUM = "shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;\nfma.rn.f32 %r3, %r1, %r1, %r2;"
SASS_SUM = "SHFL.BFLY PT, R2, R1, 0x10, 0x1f ;\nFFMA R3, R1, R1, R2 ;"


def of_ptx(*lines, end="bar.sync 0;"):
    """A kernel of these lines, after which its threads wait for each other."""
    lines = [*lines, end]
    body = "\n".join(line if line.endswith(":") else f"\t{line}" for text in lines for line in text.splitlines())
    return read_ptx(f".visible .entry kernel(\n\t.param .u64 a\n)\n{{\n\t.reg .b32 %r<9>;\n{body}\n\tret;\n\n}}\n")


def of_sass(*lines, end="BAR.SYNC.DEFER_BLOCKING 0x0 ;"):
    lines, written = [*lines, end], []
    for line in (line for text in lines for line in text.splitlines()):
        is_code = not line.endswith(":") and not line.startswith("\t//")
        written.append(f"        /*{16 * len(written):04x}*/                   {line}" if is_code else line)
    return read_sass("\n".join([".text.kernel:", *written, f"        /*{16 * len(written):04x}*/ EXIT ;"]))


PTX_REACHING = {
    "a comparison": ["setp.gt.f32 %p1, %r3, 0f3F800000;", "@%p1 bra $L1;"],
    "the other way of a branch": ["setp.gt.f32 %p1, %r3, 0f3F800000;", "@!%p1 bra $L1;"],
    "arithmetic and predicates": [
        "add.rn.f32 %r4, %r3, %r0;",
        "setp.gt.f32 %p1, %r4, %r0;",
        "and.pred %p2, %p1, %p0;",
        "@%p2 bra $L1;",
    ],
    "a selection": [
        "setp.gt.f32 %p1, %r3, %r0;",
        "selp.b32 %r5, 1, 0, %p1;",
        "setp.ne.b32 %p2, %r5, 0;",
        "@%p2 bra $L1;",
    ],
    "a guarded move": [
        "setp.gt.f32 %p1, %r3, %r0;",
        "mov.b32 %r5, 0;",
        "@%p1 mov.b32 %r5, 1;",
        "setp.ne.b32 %p2, %r5, 0;",
        "@%p2 bra $L1;",
    ],
    "halves of a wide register": [
        "mov.b64 %rd1, {%r3, %r0};",
        "mov.b64 {%r6, %r7}, %rd1;",
        "setp.gt.f32 %p1, %r6, %r0;",
        "@%p1 bra $L1;",
    ],
    "names of inline assembly": [
        "{",
        ".reg .pred wanted;",
        "setp.gt.f32 wanted, %r3, %r0;",
        "@wanted bra $L1;",
        "}",
    ],
    "an exit": ["setp.gt.f32 %p1, %r3, %r0;", "@%p1 ret;"],
    "a barrier": ["setp.gt.f32 %p1, %r3, %r0;", "@%p1 bar.sync 0;"],
}


@pytest.mark.parametrize("way", PTX_REACHING)
def test_ptx_that_lets_a_contracted_sum_decide(way):
    (finding,) = findings(of_ptx(PTX_SUM, *PTX_REACHING[way], "$L1:"))
    assert finding.sum.text == "fma.rn.f32 %r3, %r1, %r1, %r2"
    assert finding.decision.text == PTX_REACHING[way][-2 if way.startswith("names") else -1].rstrip(";")
    plain = PTX_SUM.replace("fma.rn.f32 %r3, %r1, %r1, %r2", "add.rn.f32 %r3, %r1, %r2")
    assert not findings(of_ptx(plain, *PTX_REACHING[way], "$L1:"))


def test_ptx_around_a_loop():
    """What a loop computes decides when it is entered again, by way of registers that a first look finds clean."""
    head, turn = "$L1:\nsetp.gt.f32 %p1, %r5, %r0;\n@%p1 bra $L2;", "mov.b32 %r5, %r4;\nmov.b32 %r4, %r3;\nbra.uni $L1;"
    (finding,) = findings(of_ptx(head, PTX_SUM, turn, "$L2:"))
    assert finding.decision.text == "@%p1 bra $L2"


PTX_HARMLESS = {
    "it is only stored": [PTX_SUM, "st.global.b32 [%rd1], %r3;", "@%p0 bra $L1;"],
    "its register is written again": [PTX_SUM, "mov.b32 %r3, %r0;", "setp.gt.f32 %p1, %r3, %r0;", "@%p1 bra $L1;"],
    "all threads vote": [
        PTX_SUM,
        "setp.gt.f32 %p1, %r3, %r0;",
        "vote.sync.any.pred %p2, %p1, -1;",
        "@%p2 bra $L1;",
    ],
    "it was added before": [
        "shfl.sync.bfly.b32 %r2, %r1, 16, 31, -1;",
        "add.rn.f32 %r4, %r1, %r2;",
        "fma.rn.f32 %r3, %r4, %r4, %r0;",
        "setp.gt.f32 %p1, %r3, %r0;",
        "@%p1 bra $L1;",
    ],
    "the factor is one": [
        PTX_SUM.replace("%r1, %r1, %r2;", "%r1, 0f3F800000, %r2;"),
        "setp.gt.f32 %p1, %r3, %r0;",
        "@%p1 bra $L1;",
    ],
    "threads exchange nothing": [
        PTX_SUM.replace("bfly", "idx"),
        "setp.gt.f32 %p1, %r3, %r0;",
        "@%p1 bra $L1;",
    ],
    "the branch comes first": ["@%p1 bra $L1;", PTX_SUM, "setp.gt.f32 %p1, %r3, %r0;"],
}


@pytest.mark.parametrize("way", PTX_HARMLESS)
def test_ptx_in_which_no_contracted_sum_decides(way):
    assert not findings(of_ptx(*PTX_HARMLESS[way], "$L1:"))


def test_a_shuffled_number_may_be_moved_and_converted_before_it_is_contracted():
    moved = PTX_SUM.replace("%r1, %r1, %r2;", "%r1, %r1, %r6;").replace(
        "\n", "\nmov.b32 {%rs1, %rs2}, %r2;\ncvt.f32.bf16 %r6, %rs1;\n"
    )
    assert findings(of_ptx(moved, "setp.gt.f32 %p1, %r3, %r0;", "@%p1 bra $L1;", "$L1:"))


def test_places_are_those_of_the_source():
    loc = "\t.loc\t2 263 15                        // standard.py:263:15 @[ _solve.py:133:52 ]"
    (finding,) = findings(of_ptx(loc, PTX_SUM, "setp.gt.f32 %p1, %r3, %r0;", "@%p1 bra $L1;", "$L1:"))
    assert "(standard.py:263:15 @[ _solve.py:133:52 ])" in str(finding)
    line = '\t//## File "/some/where/_solve.py", line 133'
    (finding,) = findings(of_sass(line, SASS_SUM, "FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P0 EXIT ;"))
    assert "(_solve.py:133)" in str(finding)


SASS_REACHING = {
    "a comparison": ["FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P0 BRA `(.L_x_1) ;"],
    "the second of two predicates": ["FSETP.GT.AND P1, P0, R3, 1, PT ;", "@!P0 BRA `(.L_x_1) ;"],
    "a predicate beside the guard": ["FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P1 BRA P0, `(.L_x_1) ;"],
    "predicates of predicates": [
        "FSETP.GT.AND P0, PT, R3, 1, PT ;",
        "PLOP3.LUT P2, PT, P0, P1, PT, 0x80, 0x0 ;",
        "@P2 BRA `(.L_x_1) ;",
    ],
    "bits of a register": [
        "FSETP.GT.AND P0, PT, R3, 1, PT ;",
        "P2R R9, PR, RZ, 0x1 ;",
        "ISETP.NE.AND P0, PT, RZ, RZ, PT ;",
        "R2P PR, R9, 0x1 ;",
        "@P0 BRA `(.L_x_1) ;",
    ],
    "the stack": ["STL [R1+0x8], R3 ;", "LDL.LU R7, [R1+0x8] ;", "FSETP.GT.AND P0, PT, R7, 1, PT ;", "@P0 EXIT ;"],
    "half of a wide slot": [
        "MOV R2, RZ ;",
        "STL.64 [R1+0x8], R2 ;",
        "LDL R7, [R1+0xc] ;",
        "FSETP.GT.AND P0, PT, R7, 1, PT ;",
        "@P0 EXIT ;",
    ],
    "uniform registers": [
        "R2UR UR4, R3 ;",
        "UISETP.GT.AND UP0, UPT, UR4, URZ, UPT ;",
        "BRA.U UP0, `(.L_x_1) ;",
    ],
    "the upper half of a double": [
        "F2F.F64.F32 R6, R3 ;",
        "DADD R8, R6, 1 ;",
        "ISETP.GT.AND P0, PT, R9, RZ, PT ;",
        "@P0 BRA `(.L_x_1) ;",
    ],
    "what is carried": [
        "IADD3 R6, P0, R3, R3, RZ ;",
        "IADD3.X R7, RZ, RZ, RZ, P0, !PT ;",
        "ISETP.GT.AND P1, PT, R7, RZ, PT ;",
        "@P1 BRA `(.L_x_1) ;",
    ],
    "a barrier": ["FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P0 BAR.SYNC.DEFER_BLOCKING 0x0 ;"],
}


@pytest.mark.parametrize("way", SASS_REACHING)
def test_sass_that_lets_a_contracted_sum_decide(way):
    (finding,) = findings(of_sass(SASS_SUM, *SASS_REACHING[way], ".L_x_1:"))
    assert finding.sum.text == "FFMA R3, R1, R1, R2"
    assert finding.decision.text == SASS_REACHING[way][-1].removesuffix(" ;")
    plain = SASS_SUM.replace("FFMA R3, R1, R1, R2", "FADD R3, R1, R2")
    assert not findings(of_sass(plain, *SASS_REACHING[way], ".L_x_1:"))


def test_threads_may_part_after_they_have_waited_for_the_last_time():
    decision = PTX_REACHING["a comparison"]
    assert findings(of_ptx(PTX_SUM, *decision, "$L1:"))
    assert not findings(of_ptx(PTX_SUM, *decision, "$L1:", end="st.global.b32 [%rd1], %r3;"))
    assert not findings(of_sass(SASS_SUM, *SASS_REACHING["the stack"], end="STG.E [R4], R3 ;"))
    # In a loop they wait again.
    again = "FSETP.GT.AND P0, PT, R3, 1, PT ;\n@P0 BRA `(.L_x_0) ;"
    assert findings(of_sass(".L_x_0:", SASS_SUM, again, end="STG.E [R4], R3 ;"))


def test_sass_of_doubles():
    total = "SHFL.BFLY PT, R4, R8, 0x10, 0x1f ;\nSHFL.BFLY PT, R5, R9, 0x10, 0x1f ;\nDFMA R6, R8, R8, R4 ;"
    assert findings(of_sass(total, "DSETP.GT.AND P0, PT, R6, RZ, PT ;", "@P0 EXIT ;"))
    assert findings(of_sass(total, "FSETP.GT.AND P0, PT, R7, RZ, PT ;", "@P0 EXIT ;"))
    assert not findings(of_sass(total, "FSETP.GT.AND P0, PT, R8, RZ, PT ;", "@P0 EXIT ;"))
    # The larger of two doubles is the same in both threads.
    largest = "DSETP.MAX.AND P0, P1, R8, R4, PT ;\nFSEL R6, R8, R4, P0 ;\nSEL R7, R9, R5, P0 ;\nDFMA R6, R6, R6, 1 ;"
    exchange = total.rpartition("\n")[0]
    assert not findings(of_sass(exchange, largest, "DSETP.GT.AND P0, PT, R6, RZ, PT ;", "@P0 EXIT ;"))


SASS_HARMLESS = {
    "other bits are kept in a register": [
        SASS_SUM,
        "FSETP.GT.AND P0, PT, R3, 1, PT ;",
        "P2R R9, PR, RZ, 0x2 ;",
        "ISETP.NE.AND P1, PT, R9, RZ, PT ;",
        "@P1 EXIT ;",
    ],
    "its register has another use": [SASS_SUM, "MOV R3, R8 ;", "FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P0 EXIT ;"],
    "its pair has another use": [
        SASS_SUM,
        "IMAD.WIDE R2, R8, 0x4, R6 ;",
        "ISETP.NE.AND P0, PT, R3, RZ, PT ;",
        "@P0 EXIT ;",
    ],
    "the shuffled register has another use": [
        "SHFL.BFLY PT, R2, R1, 0x10, 0x1f ;",
        "FADD R4, R1, R2 ;",
        "LDS R2, [R8] ;",
        "FFMA R3, R4, R4, R2 ;",
        "FSETP.GT.AND P0, PT, R3, 1, PT ;",
        "@P0 EXIT ;",
    ],
    "the predicate has another use": [
        SASS_SUM,
        "FSETP.GT.AND P0, PT, R3, 1, PT ;",
        "ISETP.GT.AND P0, PT, R8, RZ, PT ;",
        "@P0 EXIT ;",
    ],
    "all threads vote": [SASS_SUM, "FSETP.GT.AND P0, PT, R3, 1, PT ;", "VOTE.ANY P1, P0 ;", "@P1 EXIT ;"],
    "the factor is one": [SASS_SUM.replace("R1, R1,", "R1, 1,"), "FSETP.GT.AND P0, PT, R3, 1, PT ;", "@P0 EXIT ;"],
}


@pytest.mark.parametrize("way", SASS_HARMLESS)
def test_sass_in_which_no_contracted_sum_decides(way):
    assert not findings(of_sass(*SASS_HARMLESS[way]))


def test_sass_around_a_loop():
    head, turn = ".L_x_0:\nFSETP.GT.AND P0, PT, R5, 1, PT ;\n@P0 EXIT ;", "MOV R5, R4 ;\nMOV R4, R3 ;\nBRA `(.L_x_0) ;"
    (finding,) = findings(of_sass(head, SASS_SUM, turn))
    assert finding.decision.text == "@P0 EXIT"


def test_a_function_returns_to_where_it_was_called():
    """Two calls of one function: what is contracted before the second does not decide after the first."""
    calls = "CALL.REL.NOINC `(divide) ;\nFSETP.GT.AND P0, PT, R3, 1, PT ;\n{} ;"
    function = "BAR.SYNC.DEFER_BLOCKING 0x0 ;\nEXIT ;\ndivide:\nMUFU.RCP R8, R8 ;\nRET.REL.NODEC R20 `(kernel) ;"
    (finding,) = findings(
        of_sass("MOV R3, RZ ;", calls.format("@P0 EXIT"), SASS_SUM, calls.format("@!P0 EXIT"), function)
    )
    assert finding.decision.text == "@!P0 EXIT"


def test_what_cannot_be_read_is_refused():
    for text in ("brx.idx %r1, table;", "call (%r1), function, (%r2);"):
        with pytest.raises(ValueError, match="where it leads is not known"):
            of_ptx(text)
    with pytest.raises(ValueError, match="where it leads is not known"):
        of_sass("BRX R4 -0x20 ;")
    with pytest.raises(ValueError, match="stands twice"):
        of_ptx("$L1:", "mov.b32 %r1, %r2;", "$L1:")
    with pytest.raises(ValueError, match="no kernel"):
        read_ptx("")
    with pytest.raises(ValueError, match="no instruction"):
        read_sass("")


def test_where_contraction_is_allowed_no_sum_may_decide():
    for code in (
        of_ptx(PTX_SUM.replace("fma.rn.f32 %r3, %r1, %r1,", "add.f32 %r3, %r1,"), *PTX_REACHING["an exit"]),
        of_sass(SASS_SUM.replace("FFMA R3, R1, R1,", "FADD R3, R1,"), *SASS_REACHING["a comparison"], ".L_x_1:"),
    ):
        assert not findings(code)
        (finding,) = findings(code, any_sum=True)
        assert "allows contraction of a sum" in str(finding)
    # Sums of integers and the larger of two numbers are never contracted.
    for combined in ("add.s32 %r3, %r1,", "max.f32 %r3, %r1,"):
        code = of_ptx(PTX_SUM.replace("fma.rn.f32 %r3, %r1, %r1,", combined), *PTX_REACHING["an exit"])
        assert not findings(code, any_sum=True)


def test_kinds_are_counted():
    code = of_ptx(PTX_SUM, PTX_SUM)
    assert [code.count(kind) for kind in (Kind.BUTTERFLY, Kind.FUSED)] == [2, 2]
    assert len(code.instructions) == 6

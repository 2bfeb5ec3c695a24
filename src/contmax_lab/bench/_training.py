"""The suites `translation` and `vqa`: training steps and beam searches by attention, beside discrete softmax."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from contmax_lab.bench._figure import Figure, Suite, gpu_suite, ratio
from contmax_lab.bench._measuring import Call, Clock, Effort, interleaved

if TYPE_CHECKING:
    from contmax_lab.contract import Batch

# Laboratory imports stand inside functions: the other suites run where only torch and numpy are installed.
_STEP = "translation, a training step: {clock} / discrete softmax"
_DECODE = "translation, beam search: tokens per second by {clock} / discrete softmax"
_KINDS = {
    "discrete softmax": ("discrete", 1),
    "discrete sparsemax": ("discrete", 2),
    "disc. + cont. softmax": ("combined", 1),
    "disc. + cont. sparsemax": ("combined", 2),
    "continuous sparsemax": ("continuous", 2),
}
_UNIT = "discrete softmax"
_SLOWEST_STEP, _LEAST_TOKENS = 1.2, 0.85

_VQA_STEP = "visual question answering, 14 × 14 cells, one training step: time / that with discrete softmax"
_VQA_KINDS = {
    "2D continuous softmax": {"attention": "continuous", "alpha": 1.0},
    "2D continuous sparsemax": {"attention": "continuous", "alpha": 2.0},
    "mixture of 3, sparsemax": {"attention": "mixture", "alpha": 2.0},
    "combined, sparsemax": {"attention": "combined", "alpha": 2.0},
}
_SMALL = {"layers": 2, "heads": 4, "hidden_dim": 256, "fused_dim": 512, "flat_dim": 256}
_TINY = {"layers": 1, "heads": 2, "hidden_dim": 16, "fused_dim": 16, "flat_dim": 16, "word_dim": 8}
_WORDS, _ANSWERS, _CHANNELS, _LENGTH = 1000, 3129, 1280, 14

# -- translation -------------------------------------------------------------------------------------------------------


def _translators(small: bool, device: str) -> dict[str, nn.Module]:
    """A network for each attention, of the sizes of the recipe and without dropout."""
    from contmax_lab.contract import Splits
    from contmax_lab.registry import load_recipe

    splits = Splits((), (), (), {"vocabulary": 50 if small else 8000})
    sizes = ["embedding_dim=8", "encoder_dim=8", "decoder_dim=8", "beam=2"] if small else []
    fixed = [*sizes, "dropout=0", "hidden_dropout=0", f"max_output={3 if small else 20}"]
    found = {}
    for name, (attention, alpha) in _KINDS.items():
        changes = [*fixed, f"attention={attention}", f"alpha={alpha}"]
        recipe = load_recipe("translation/multi30k", [f"--model.{change}" for change in changes])
        torch.manual_seed(0)
        found[name] = recipe.task.build(recipe.model, splits).to(device)
    return found


def _batch(small: bool, device: str, *, sentences: int) -> Batch:
    """Sentences of 8 to 16 pieces; most of Multi30k's are not longer."""
    count, length = (4, 5) if small else (sentences, 16)
    random = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, 50, (count, length), generator=random) for _ in range(2))
    lengths = torch.randint(length // 2, length + 1, (count, 1), generator=random)
    source[torch.arange(length) >= lengths] = 0
    return {"source": source.to(device), "target": target.to(device)}


def _mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    from contmax_lab.registry import installed_task

    losses, weights = installed_task("translation").loss(model(batch), batch)
    return losses.sum() / weights.sum()


def _steps(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """Forward and backward pass."""

    def step(model: nn.Module) -> object:
        loss = _mean_loss(model.train(), batch)
        return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])

    return {name: functools.partial(step, model) for name, model in models.items()}


def _laboratory_steps(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """The step of a training in the laboratory: the batch comes from the host, and its kernels are recorded."""
    from contmax_lab.recorded import RepeatedParts

    on_host = {name: tensor.cpu() for name, tensor in batch.items()}

    def learner(model: nn.Module) -> Call:
        def learn(sent: Batch) -> Tensor:
            loss = _mean_loss(model, sent)
            loss.backward()
            return loss.detach()

        parts = RepeatedParts(learn, batch["source"].device)
        model.train()

        def step() -> object:
            model.zero_grad(set_to_none=False)
            return parts(on_host)

        return step

    return {name: learner(model) for name, model in models.items()}


def _searches(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    def search(model: Any) -> object:
        # Untrained networks go on to the longest translation, so that all of them say as many pieces.
        return model.eval().translated(batch["source"])

    return {name: functools.partial(search, model) for name, model in models.items()}


def _cpu_figures(effort: Effort) -> Iterator[Figure]:
    models = _translators(effort.small, "cpu")
    batch, few = (_batch(effort.small, "cpu", sentences=count) for count in (64, 8))
    times = interleaved(_steps(models, batch), effort)
    yield from _compared(_STEP.format(clock="processor time"), "64 sentences", times, at_most=_SLOWEST_STEP)
    times = interleaved(_searches(models, few), effort)
    yield from _compared(_DECODE.format(clock="processor time"), "8 sentences, beam 5", times, at_least=_LEAST_TOKENS)


def translation_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite on a GPU, by a clock."""
    models = _translators(effort.small, clock.device)
    batch = _batch(effort.small, clock.device, sentences=192)
    steps, searches = _steps(models, batch), _searches(models, batch)
    row = "192 sentences"
    times = clock.device_times(steps, effort)
    yield from _compared(_STEP.format(clock="device time"), row, times, at_most=_SLOWEST_STEP)
    times = clock.wall_times(_laboratory_steps(models, batch), effort)
    yield from _compared(_STEP.format(clock="wall clock in the laboratory"), row, times, at_most=_SLOWEST_STEP)
    yield from _compared(_STEP.format(clock="wall clock of eager calls"), row, clock.wall_times(steps, effort))
    times = clock.wall_times(searches, effort)
    yield from _compared(_DECODE.format(clock="wall clock"), f"{row}, beam 5", times, at_least=_LEAST_TOKENS)


def _compared(table: str, row: str, times: Mapping[str, list[float]], **target: float | None) -> Iterator[Figure]:
    """Each attention beside discrete softmax: its time, or where the target is ``at_least``, its speed."""
    for name in times:
        if name != _UNIT:
            over = (_UNIT, name) if "at_least" in target else (name, _UNIT)
            place = {"table": table, "row": row, "column": name}
            # A discrete attention has no target.
            yield ratio(times, *over, **place, **({} if name.startswith("discrete") else target))


# -- visual question answering -----------------------------------------------------------------------------------------


def _vqa_figures(
    effort: Effort, device: str, times: Callable[[Mapping[str, Call], Effort], dict[str, list[float]]]
) -> Iterator[Figure]:
    """Ratios of whole steps (forward, backward, optimizer); `times` maps steps to their seconds, round by round."""
    few = device == "cpu"
    sizes: dict[str, tuple[dict[str, int], int]] = {
        "6 layers, 512 channels": ({}, 2 if few else 64),
        "2 layers, 256 channels": (_SMALL, 16 if few else 64),
    }
    for name, (size, batch) in ({"tiny": (_TINY, 2)} if effort.small else sizes).items():
        discrete = _vqa_step({"attention": "discrete", "alpha": 1.0, **size}, batch, device)
        for kind, options in _VQA_KINDS.items():
            found = times({"torch": discrete, "contmax": _vqa_step({**options, **size}, batch, device)}, effort)
            # The continuous attentions of the paper have a target; the other two are not of the paper.
            limit = 1.2 if kind.startswith("2D") else None
            place = {"table": _VQA_STEP, "row": f"{name}, B = {batch}", "column": kind}
            yield ratio(found, **place, at_most=limit)


def _vqa_step(options: dict[str, Any], batch_size: int, device: str) -> Call:
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


TRANSLATION = Suite("translation", _cpu_figures)
GPU_TRANSLATION = gpu_suite("translation", translation_figures)
VQA = Suite("vqa", lambda effort: _vqa_figures(effort, "cpu", interleaved))
GPU_VQA = gpu_suite("vqa", lambda effort, clock: _vqa_figures(effort, clock.device, clock.wall_times))

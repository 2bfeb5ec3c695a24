"""The suite `translation`: one training step and one beam search with each attention, beside discrete softmax."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from contmax_lab.bench._figure import Figure
from contmax_lab.bench._gpu_timing import Call, Clock, GraphClock
from contmax_lab.bench._suite import Suite
from contmax_lab.bench._timing import Effort, Ratio, interleaved

if TYPE_CHECKING:
    from contmax_lab.contract import Batch

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
_VOCABULARY = 8000


def _translators(small: bool, device: str) -> dict[str, nn.Module]:
    """A network for each attention, of the sizes of the recipe and without dropout."""
    # Here, since the other suites need nothing of the laboratory.
    from contmax_lab.contract import Splits
    from contmax_lab.registry import load_recipe

    task = load_recipe("translation").task
    splits = Splits((), (), (), {"vocabulary": 50 if small else _VOCABULARY})
    sizes = ["embedding_dim=8", "encoder_dim=8", "decoder_dim=8", "beam=2"] if small else []
    fixed = [*sizes, "dropout=0", "hidden_dropout=0", f"max_output={3 if small else 20}"]
    found = {}
    for name, (attention, alpha) in _KINDS.items():
        changes = [*fixed, f"attention={attention}", f"alpha={alpha}"]
        model = load_recipe("translation/multi30k", [f"--model.{change}" for change in changes]).model
        torch.manual_seed(0)
        found[name] = task.build(model, splits).to(device)
    return found


def _batch(small: bool, device: str, *, sentences: int) -> Batch:
    """Sentences of 8 to 16 pieces, the longest of which are as long as most of Multi30k's."""
    count, length = (4, 5) if small else (sentences, 16)
    random = torch.Generator().manual_seed(0)
    source, target = (torch.randint(4, 50, (count, length), generator=random) for _ in range(2))
    lengths = torch.randint(length // 2, length + 1, (count, 1), generator=random)
    source[torch.arange(length) >= lengths] = 0
    return {"source": source.to(device), "target": target.to(device)}


def _steps(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """Forward and backward pass."""
    from contmax_lab.registry import load_recipe

    task = load_recipe("translation").task

    def step(model: nn.Module) -> object:
        losses, weights = task.loss(model(batch), batch)
        return torch.autograd.grad(losses.sum() / weights.sum(), [p for p in model.parameters() if p.requires_grad])

    return {name: lambda model=model: step(model.train()) for name, model in models.items()}  # type: ignore[misc]


def _laboratory_steps(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    """The same as a training in the laboratory takes it: from a batch on the host, recorded for its shape."""
    from contmax_lab.registry import load_recipe
    from contmax_lab.training import RepeatedParts

    task = load_recipe("translation").task
    device = batch["source"].device
    on_host = {name: tensor.cpu() for name, tensor in batch.items()}

    def learner(model: nn.Module) -> Call:
        def learn(sent: Batch) -> Tensor:
            losses, weights = task.loss(model(sent), sent)
            loss = losses.sum() / weights.sum()
            loss.backward()
            return loss.detach()

        parts = RepeatedParts(learn, device)
        model.train()

        def step() -> object:
            model.zero_grad(set_to_none=False)
            return parts(on_host)

        return step

    return {name: learner(model) for name, model in models.items()}


def _searches(models: Mapping[str, nn.Module], batch: Batch) -> dict[str, Call]:
    def search(model: Any) -> object:
        # Networks that have learned nothing go on to the longest translation, so that all say as many pieces.
        return model.translated(batch["source"])

    return {name: lambda model=model: search(model.eval()) for name, model in models.items()}  # type: ignore[misc]


def _cpu_figures(effort: Effort) -> Iterator[Figure]:
    models = _translators(effort.small, "cpu")
    batch, few = (_batch(effort.small, "cpu", sentences=count) for count in (64, 8))
    clock = "processor time"
    yield from _ratios(_STEP.format(clock=clock), "64 sentences", interleaved(_steps(models, batch), effort))
    times = interleaved(_searches(models, few), effort)
    yield from _rates(_DECODE.format(clock=clock), "8 sentences, beam 5", times)


def translation_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite on a GPU, by a clock."""
    models = _translators(effort.small, clock.device)
    batch = _batch(effort.small, clock.device, sentences=192)
    steps, searches = _steps(models, batch), _searches(models, batch)
    row = "192 sentences"
    yield from _ratios(_STEP.format(clock="device time"), row, clock.device_times(steps, effort))
    recorded = clock.wall_times(_laboratory_steps(models, batch), effort)
    yield from _ratios(_STEP.format(clock="wall clock in the laboratory"), row, recorded)
    eager = clock.wall_times(steps, effort)
    yield from _ratios(_STEP.format(clock="wall clock of eager calls"), row, eager, limit=None)
    times = clock.wall_times(searches, effort)
    yield from _rates(_DECODE.format(clock="wall clock"), f"{row}, beam 5", times)


def _ratios(
    table: str, row: str, times: Mapping[str, list[float]], limit: float | None = _SLOWEST_STEP
) -> Iterator[Figure]:
    for name in times:
        if name != _UNIT:
            ratio = Ratio.of(times[name], times[_UNIT])
            most = None if name.startswith("discrete") else limit
            yield Figure(table, row, name, ratio.median, at_most=most, details=_details(times, name))


def _rates(table: str, row: str, times: Mapping[str, list[float]]) -> Iterator[Figure]:
    for name in times:
        if name != _UNIT:
            ratio = Ratio.of(times[_UNIT], times[name])
            limit = None if name.startswith("discrete") else _LEAST_TOKENS
            yield Figure(table, row, name, ratio.median, at_least=limit, details=_details(times, name))


def _details(times: Mapping[str, list[float]], name: str) -> dict[str, Any]:
    return {"seconds": min(times[name]), "seconds_of_discrete_softmax": min(times[_UNIT]), "rounds": len(times[name])}


TRANSLATION = Suite("translation", _cpu_figures)
GPU_TRANSLATION = Suite("translation", lambda effort: translation_figures(effort, GraphClock()))

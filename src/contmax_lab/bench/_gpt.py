"""The suite `gpt` on a GPU: steps of a small GPT with entmax attention beside the same GPT with torch's own attention.

The model reads bytes: the sources of Python's standard library, a real text that every machine has. It is timed as
initialised, where scores are flat, and after a training, where few keys have weight. Every step is a forward and a
backward pass under autocast in bfloat16 and one step of AdamW, launched from Python, eagerly and compiled.

Another model without positions, half of whose heads have a penalty for distance (ALiBi), reads texts far longer than
those of its training: its keys show what steps of generation may skip.
"""

import dataclasses
import itertools
import math
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import contmax
from contmax_lab.bench._decode import Layer, trained_figures
from contmax_lab.bench._figure import Figure, gpu_suite, ratio
from contmax_lab.bench._measuring import Clock, Effort, percentiles, time_when_idle

_STEP = "a GPT of 6 layers, one step: wall clock / scaled_dot_product_attention"
_TRAINED = "the same model trained on text"
_BYTES = 256
_RATE, _LEAST_RATE = 6e-4, 0.1
# Steps between two points of a learning curve.
_POINT = 50
# Queries whose supports are counted.
_COUNTED = 256
# Queries of a long text that attend at once.
_CHUNK = 8192


class _Size(NamedTuple):
    """Sequences and their length, and the targets as initialised and trained."""

    batch: int
    length: int
    flat_at_most: float | None = None
    trained_at_most: float | None = None

    @property
    def row(self) -> str:
        return f"B = {self.batch}, L = {self.length:,}"


class _Plan(NamedTuple):
    """Sizes of the model and of the training."""

    layers: int
    heads: int
    width: int
    steps: int
    sizes: tuple[_Size, ...]
    long: _Size
    # Lengths of texts, and the targets for a step of generation with key pages.
    texts: dict[int, float | None]


_PLAN = _Plan(
    6, 12, 768, 2000, (_Size(16, 1024, 1.06, 1.05), _Size(4, 4096, 1.2, 1.05), _Size(1, 16384, 1.3, 0.9)),
    _Size(4, 4096), {65_536: 0.5, 524_288: 0.2},
)  # fmt: skip
_SMALL = _Plan(1, 2, 16, 3, (_Size(2, 40),), _Size(2, 40), {200: None})


@dataclasses.dataclass(frozen=True)
class _Attention:
    """The attention of a model: its final α, and the share of the training over which α rises from 1."""

    name: str
    alpha: float
    rise: float = 0.0

    def alpha_at(self, share: float) -> float:
        """α after a share of the training."""
        return 1 + (self.alpha - 1) * min(1.0, share / self.rise) if self.rise else self.alpha


_SOFTMAX = _Attention("softmax", 1.0)
_ENTMAX = _Attention("entmax", 1.5)
_RISING = _Attention("entmax, α rises from 1", 1.5, rise=0.3)
_ALIBI = _Attention("entmax, half of the heads with ALiBi", 1.5)


class _Block(torch.nn.Module):
    """Attention and two linear layers, each after a norm and beside the identity."""

    def __init__(self, width: int, heads: int, alibi: bool) -> None:
        super().__init__()
        self.heads, self.alibi = heads, alibi
        self.before_attention, self.before_layers = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.projection, self.output = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.wide, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def heads_of(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, H, L, d) each."""
        query, key, value = self.projection(self.before_attention(x)).chunk(3, -1)
        query, key, value = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (query, key, value))
        return query, key, value

    def bias(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """−|i − j|/h for heads h = 1 … H/2 and 0 for the others, by distance: (H, 1, Q + L − 1)."""
        if not self.alibi:
            return None
        head = torch.arange(1.0, self.heads + 1, device=device).view(-1, 1, 1)
        distance = torch.arange(1 - keys, queries, device=device).abs()
        return torch.where(head <= self.heads // 2, -distance / head, 0.0)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, alpha: float) -> Tensor:
        """Means of the values; the last query is at the last key."""
        if alpha == 1:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True)
        bias = self.bias(query.shape[2], key.shape[2], key.device)
        means = contmax.entmax_attention(query, key, value, alpha=alpha, bias=bias, is_causal=True)
        assert isinstance(means, Tensor)
        return means

    def forward(self, x: Tensor, alpha: float) -> Tensor:
        return self.after_attention(x, self.attended(*self.heads_of(x), alpha))

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output of the block, from its input and the means of the values."""
        x = x + self.output(attended.transpose(1, 2).flatten(-2))
        added: Tensor = self.narrow(F.gelu(self.wide(self.before_layers(x))))
        return x + added


class _Gpt(torch.nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self, plan: _Plan, length: int, *, alibi: bool = False) -> None:
        super().__init__()
        self.bytes = torch.nn.Embedding(_BYTES, plan.width)
        self.places = None if alibi else torch.nn.Embedding(length, plan.width)
        self.blocks = torch.nn.ModuleList([_Block(plan.width, plan.heads, alibi) for _ in range(plan.layers)])
        self.norm, self.logits = torch.nn.LayerNorm(plan.width), torch.nn.Linear(plan.width, _BYTES)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                residual = name.endswith(("output.weight", "narrow.weight"))
                torch.nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * plan.layers) if residual else 0.02)

    def states(self, words: Tensor, alpha: float) -> Iterator[tuple[torch.nn.Module, Tensor]]:
        """Each block with its input, and at last the norm with the output of the blocks."""
        x = self.bytes(words)
        if self.places is not None:
            x = x + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            yield block, x
            x = block(x, alpha)
        yield self.norm, x

    def forward(self, words: Tensor, alpha: float) -> Tensor:
        """The mean loss of all bytes but the first of each sequence, from `words` (B, L + 1)."""
        *_, (norm, x) = self.states(words[:, :-1], alpha)
        return F.cross_entropy(self.logits(norm(x)).float().flatten(0, 1), words[:, 1:].flatten())


def gpt_figures(effort: Effort, clock: Clock) -> Iterator[Figure]:
    """The figures of the suite, by a clock."""
    plan = _SMALL if effort.small else _PLAN
    text = _text(clock.device)
    torch.manual_seed(0)
    model = _Gpt(plan, plan.long.length, alibi=True).to(clock.device)
    yield _trained(model, _ALIBI, plan, plan.long, text)
    for length, at_most in plan.texts.items():
        yield from trained_figures(_layers(model, text[:length], _ALIBI.alpha), at_most, clock, effort)
    for size in plan.sizes:
        torch.manual_seed(0)
        model = _Gpt(plan, size.length).to(clock.device)
        yield from _beside(model, size, text, "as initialised", size.flat_at_most, clock, effort)
        yield _trained(model, _ENTMAX, plan, size, text)
        yield from _beside(model, size, text, "trained", size.trained_at_most, clock, effort)
    for attention in (_SOFTMAX, _RISING):
        torch.manual_seed(0)
        yield _trained(_Gpt(plan, plan.sizes[0].length).to(clock.device), attention, plan, plan.sizes[0], text)


def _text(device: str) -> Tensor:
    """The sources of Python's standard library as bytes, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.glob("*.py") if path.is_file())
    text = b"\n".join(path.read_bytes() for path in paths)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)


def _drawn(text: Tensor, size: _Size, generator: torch.Generator) -> Tensor:
    """Pieces of the text, (B, L + 1)."""
    starts = torch.randint(len(text) - size.length - 1, (size.batch, 1), generator=generator).to(text.device)
    return text[starts + torch.arange(size.length + 1, device=text.device)].long()


def _beside(
    model: _Gpt, size: _Size, text: Tensor, when: str, at_most: float | None, clock: Clock, effort: Effort
) -> Iterator[Figure]:
    """A step with entmax beside one with softmax, eager and compiled; the model stays as it is."""
    words = _drawn(text, size, torch.Generator().manual_seed(1))
    for kind, loss_of in (("eager", model), ("compiled", torch.compile(model, dynamic=False))):
        if kind == "compiled" and effort.small:
            return
        steps = {
            name: _step(model, loss_of, words, attention.alpha)
            for name, attention in (("contmax", _ENTMAX), ("torch", _SOFTMAX))
        }
        times = clock.wall_times(steps, effort if effort.small else dataclasses.replace(effort, block=0.2, budget=4.0))
        yield ratio(times, table=_STEP, row=size.row, column=f"{when}, {kind}", at_most=at_most)


def _step(model: _Gpt, loss_of: Callable[..., Tensor], words: Tensor, alpha: float) -> Callable[[], None]:
    """One step of a training that moves no weight: the rate of its optimiser is 0."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0, fused=words.is_cuda)

    def step() -> None:
        with torch.autocast(words.device.type, torch.bfloat16):
            loss = loss_of(words, alpha)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _trained(model: _Gpt, attention: _Attention, plan: _Plan, size: _Size, text: Tensor) -> Figure:
    """Train the model; the figure is its last loss in bits per byte, with the curves in its details."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95), fused=text.is_cuda)
    generator = torch.Generator().manual_seed(2)
    curve: list[dict[str, float]] = []
    losses: list[Tensor] = []
    start = time_when_idle(text.device.type)
    for step in range(plan.steps):
        alpha = attention.alpha_at(step / plan.steps)
        for group in optimizer.param_groups:
            group["lr"] = _RATE * _rate(step, plan.steps)
        with torch.autocast(text.device.type, torch.bfloat16):
            loss = model(_drawn(text, size, generator), alpha)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if (step + 1) % _POINT == 0 or step + 1 == plan.steps:
            seconds = (time_when_idle(text.device.type) - start) / len(losses)
            bits = float(torch.stack(losses).mean()) / math.log(2)
            support = _support(model, _drawn(text, size, torch.Generator().manual_seed(3)), alpha)
            curve.append({"step": step + 1, "alpha": alpha, "bits": bits, "seconds": seconds, "support": support})
            losses.clear()
            start = time_when_idle(text.device.type)
    details: dict[str, Any] = {"curve": curve, "seconds": percentiles([point["seconds"] for point in curve])}
    return Figure(_TRAINED, f"{size.row}, {attention.name}", "bits per byte", curve[-1]["bits"], details=details)


def _rate(step: int, steps: int) -> float:
    """The learning rate as a share of its largest: a short rise, then half a cosine down to a tenth."""
    rise = max(1, steps // 20)
    fallen = (step - rise) / max(1, steps - rise)
    return (step + 1) / rise if step < rise else _LEAST_RATE + (1 - _LEAST_RATE) * (1 + math.cos(math.pi * fallen)) / 2


@torch.no_grad()
def _support(model: _Gpt, words: Tensor, alpha: float) -> float:
    """The mean number of keys with weight, over all layers and heads, of the last queries of one sequence."""
    counts = []
    with torch.autocast(words.device.type, torch.bfloat16):
        for block, x in itertools.islice(model.states(words[:1, :-1], alpha), len(model.blocks)):
            assert isinstance(block, _Block)
            query, key, _ = block.heads_of(x)
            rows = torch.arange(max(0, key.shape[2] - _COUNTED), key.shape[2], device=x.device)
            scores = (query[:, :, rows].float() @ key.float().mT) / math.sqrt(query.shape[-1])
            bias = block.bias(1, key.shape[2], x.device)
            if bias is not None:
                distance = (rows.unsqueeze(1) - torch.arange(key.shape[2], device=x.device)).clamp(min=0)
                scores = scores + bias[:, 0, key.shape[2] - 1 - distance]
            allowed = torch.arange(key.shape[2], device=x.device) <= rows.unsqueeze(1)
            p = contmax.entmax(scores, alpha, mask=allowed)
            counts.append((p > 0).sum(-1).double().mean())
    return float(torch.stack(counts).mean())


@torch.no_grad()
def _layers(model: _Gpt, text: Tensor, alpha: float) -> list[Layer]:
    """What the last byte of a text attends in each layer."""
    found = []
    with torch.autocast(text.device.type, torch.bfloat16):
        x = model.bytes(text.long().unsqueeze(0))
        for block in model.blocks:
            assert isinstance(block, _Block)
            query, key, value = (y.contiguous() for y in block.heads_of(x))
            bias = block.bias(1, len(text), text.device)
            assert bias is not None
            found.append(Layer(query[:, :, -1:], key, value, bias))
            chunks = []
            for begin in range(0, len(text), _CHUNK):
                end = begin + _CHUNK
                chunks.append(block.attended(query[:, :, begin:end], key[:, :, :end], value[:, :, :end], alpha))
            x = block.after_attention(x, torch.cat(chunks, 2))
    return found


def draw_gpt(results: dict[str, Any], path: Path) -> None:
    """Time, support and loss over the steps of the trainings at the first size, as a picture.

    Args:
        results: what the suite stored, as read from its file.
        path: where to put the picture; matplotlib makes it.
    """
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=(10, 3.2), layout="constrained")
    shown = [("bits", "bits per byte"), ("support", "keys with weight per query"), ("seconds", "milliseconds per step")]
    figures = [f for f in results["figures"] if f["table"] == _TRAINED]
    ends = f", {_ENTMAX.name}"
    first = next((f["row"].removesuffix(ends) for f in figures if f["row"].endswith(ends)), "")
    for axes, (name, label) in zip(picture.subplots(1, 3), shown, strict=True):
        for figure in figures:
            if figure["row"].startswith(f"{first}, "):
                curve = figure["details"]["curve"]
                values = [1e3 * point[name] if name == "seconds" else point[name] for point in curve]
                axes.plot([point["step"] for point in curve], values, label=figure["row"].removeprefix(f"{first}, "))
        axes.set_xlabel("steps")
        axes.set_title(label, fontsize="medium", loc="left")
        axes.grid(alpha=0.3)
        if name == "support":
            axes.set_yscale("log")
    picture.axes[0].legend(frameon=False, fontsize="small")
    picture.savefig(path, dpi=150)


GPU_GPT = gpu_suite("gpt", gpt_figures)

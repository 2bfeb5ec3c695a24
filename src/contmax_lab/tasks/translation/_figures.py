"""Where trained models look in the source sentence, for each piece of a translation."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contmax.densities import BetaGaussian
from contmax.viz import plot_alignment
from contmax_lab.contract import Figure, FileAnswer, Prediction, TrainedRun
from contmax_lab.data import BrokenRow, read_lines
from contmax_lab.drawing import Theme, new_axes
from contmax_lab.errors import UsageError
from contmax_lab.labelled import Input, answered
from contmax_lab.tasks.translation import TranslationModel
from contmax_lab.tasks.translation._attention import Guesses, shares
from contmax_lab.tasks.translation._data import (
    END,
    PADDING,
    START,
    TOKENIZER_FILE,
    Pairs,
    as_text,
    normalised,
    read_encoder,
)
from contmax_lab.tasks.translation._model import Translator
from contmax_lab.tasks.translation._transformer import Transformer

# Sentences of about this many pieces fit on a page, several side by side.
_PIECES = 11
_SENTENCES = 3
_INCHES_PER_PIECE = 0.24
# Sentences of a file that are translated at once.
_TOGETHER = 16
# The share of the attention that the pieces named in a printed alignment hold.
_MOST = 0.9
_NAMES = {"discrete": "discrete", "continuous": "continuous", "combined": "discrete + continuous"}


@dataclasses.dataclass(frozen=True)
class Looked:
    """Where a model looked in one sentence.

    Args:
        title: what the picture calls the model.
        source, said: pieces of the sentence, L with its end, and of the translation, T with its end.
        shares: how much of the attention falls to each piece, (T, L).
        weights: of the pieces, (T, L); None where they are not attended with.
        density: over the sentence as the unit interval, of batch shape (1, T); None without one.
    """

    title: str
    source: list[str]
    said: list[str]
    shares: Tensor
    weights: Tensor | None = None
    density: BetaGaussian | None = None


@torch.no_grad()
def looked(trained: TrainedRun, source: Tensor, said: Tensor) -> Looked:
    """Let a model say a translation, (1, 1 + T) from the start to the end, of a sentence (1, L)."""
    guesses: Guesses = trained.model({"source": source, "target": said})
    pieces = trained.splits.info["pieces"]
    read, spoken = ([_shown(pieces[number]) for number in row.tolist()] for row in (source[0], said[0, 1:]))
    weights, title, density = guesses.look.weights[0], _title(trained.recipe.model), guesses.density
    if density is None:
        return Looked(title, read, spoken, weights, weights)
    shown = weights if guesses.combined else None
    return Looked(title, read, spoken, shares(guesses)[0], shown, density)


def alignments(runs: Sequence[TrainedRun], examples: Sequence[int] = ()) -> list[Figure]:
    """One picture for each of some validation sentences, by default short ones; each run says the reference."""
    if not runs:
        return []
    pairs = cast(Pairs, runs[0].splits.valid)
    off = (pairs.source.lengths - _PIECES).abs() + (pairs.target.lengths - _PIECES).abs()
    figures = []
    for place in examples or off.argsort(stable=True)[:_SENTENCES].tolist():
        batches = [trained.task.batch(trained.splits.valid, [place]) for trained in runs]
        panels = [looked(run, batch["source"], batch["target"]) for run, batch in zip(runs, batches, strict=True)]
        text = runs[0].splits.info["texts"][int(batches[0]["row"])][0]
        figures.append(_figure(f"Attention over sentence {place + 1}", panels, text))
    return figures


def predicted(trained: TrainedRun, words: Sequence[str]) -> Prediction:
    """The translation of a sentence, and which pieces of it were attended for each piece of the translation."""
    text = normalised(" ".join(words), lowercase=trained.recipe.data.lowercase)
    if not text:
        raise UsageError('pass a sentence, e.g. contmax predict RUN "Ein Hund läuft."; - reads standard input')
    encoder = read_encoder(Path(trained.splits.info["prepared"]) / TOKENIZER_FILE)
    numbers = encoder.encode(text, add_special_tokens=False).ids
    source = torch.tensor([[*numbers, END]])
    said = cast(Translator | Transformer, trained.model).translated(source)
    spoken = said[:, : int((said != PADDING).sum())]
    found = looked(trained, source, torch.cat([torch.tensor([[START]]), spoken], 1))
    width = max(map(len, found.said))
    lines = [f"{piece:{width}}  {' '.join(_attended(found, row))}" for row, piece in enumerate(found.said)]
    answer = as_text(spoken[0].tolist(), trained.splits.info["pieces"])
    return Prediction("\n".join([answer, "", *lines]), _figure("Attention of a translation", [found], text))


def translated_file(
    model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
) -> Iterator[FileAnswer]:
    """The translations of a text file with a sentence in each line; arguments as of `Task.predict_file`."""
    if column or keep:
        raise UsageError("a text file with a sentence in each line has no columns; leave out --column and --keep")
    encoder = read_encoder(Path(info["prepared"]) / TOKENIZER_FILE)

    def inputs() -> Iterator[Input[str]]:
        for line in read_lines(path):
            number, text = (line.place.line, "") if isinstance(line, BrokenRow) else line
            sentence = normalised(text, lowercase=info["of_sentences"]["lowercase"])
            problem = line.text if isinstance(line, BrokenRow) else "" if sentence else "no sentence"
            name = {"line": number, "source": text}
            yield Input(name, sentence or None, f"line {number}: {problem}" if problem else "")

    def answer(sentences: list[str]) -> list[dict[str, Any]]:
        numbers = [[*encoder.encode(text, add_special_tokens=False).ids, END] for text in sentences]
        source = pad_sequence([torch.tensor(own) for own in numbers], batch_first=True, padding_value=PADDING)
        said = cast(Translator | Transformer, model).translated(source).tolist()
        return [{"translation": as_text(own, info["pieces"])} for own in said]

    return answered(inputs(), answer, _TOGETHER)


def _attended(found: Looked, row: int) -> list[str]:
    """The fewest pieces that hold most of the attention, in their order."""
    falling, order = found.shares[row].sort(descending=True, stable=True)
    taken = order[(falling.cumsum(0) - falling < _MOST) & (falling > 0)]
    return [found.source[place] for place in sorted(taken.tolist())]


def _figure(title: str, panels: Sequence[Looked], text: str) -> Figure:
    def draw(theme: Theme) -> Any:
        wide = sum(max(len(panel.source) * _INCHES_PER_PIECE, 1.6) + 0.75 for panel in panels)
        high = max(len(panel.said) for panel in panels) * _INCHES_PER_PIECE + 1.3
        figure, axes = new_axes(columns=len(panels), width=wide, height=high)
        for axis, panel in zip(axes, panels, strict=True):
            plot_alignment(panel.source, panel.said, panel.weights, panel.density, ax=axis)
            axis.set_title(panel.title, fontsize=8, loc="left")
        return figure

    caption = (
        f"“{text}”. For each piece of the translation, from top to bottom, where in the source sentence the model "
        "looks: weights of discrete attention in blue, the density of a continuous one in orange; where there are "
        "both, squares are weights. Each row has its own scale. Dots mark the pieces with a positive density, or "
        "without a density those with a positive weight, unless all are."
    )
    return Figure(title, draw, caption)


def _shown(piece: str) -> str:
    """A piece for readers: + marks the continuation of a word.

    Example:
        >>> [_shown(piece) for piece in ("▁baum", "wolle", ".", "</s>")]
        ['baum', '+wolle', '.', '</s>']
    """
    if piece.startswith("▁"):
        return piece[1:] or "▁"
    return f"+{piece}" if piece[0].isalnum() else piece


def _title(model: TranslationModel) -> str:
    form = {1.0: "softmax", 2.0: "sparsemax"}.get(float(model.alpha), f"α = {model.alpha:g}")
    if model.network == "transformer":
        return f"transformer, {'α per head' if model.learned_alpha else form}"
    return f"{_NAMES[model.attention]} {form}"

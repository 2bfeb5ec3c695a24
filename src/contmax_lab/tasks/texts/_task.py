"""The task texts: a network, pictures of where it looks, what it says of a new text."""

from collections.abc import Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import contmax
from contmax_lab.contract import Batch, Figure, FileAnswer, Look, Prediction, Splits, TrainedRun, seedless
from contmax_lab.data import TableRow, read_vectors, table_kind
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import (
    Answer,
    Decision,
    LabelledTask,
    Targets,
    answered,
    attended_interval,
    attention_over,
    look_of,
    middles,
    numbered,
    said,
    table_inputs,
    text_figure,
    told_of,
    truth,
)
from contmax_lab.tasks.texts import SETTINGS, TextsData, TextsModel
from contmax_lab.tasks.texts._data import FIRST_WORD, PADDING, UNKNOWN, Texts, load, split_words

# Texts with about this many words fit on a page.
_WORDS = 36
_TEXTS = 4
_ENDS = ("first word", "last word")
_CAPTION = (
    "Bars: weights of single words. Curve: density over the text, per word, beside bars on the scale to "
    "the right; the words it selects are shaded. One panel for each head. Words in grey are not attended in the "
    "last panel."
)


class TextReader(nn.Module):
    """Numbers of words → answers.

    Args:
        model: its configuration.
        words: the vocabulary.
        targets: classes or numbers.
        vector_width: of word vectors from elsewhere; 0 = there are none.

    Example:
        >>> reader = TextReader(TextsModel(hidden_dim=8, functions=4), ["good", "bad"], Targets(("no", "yes")))
        >>> answer = reader({"tokens": torch.tensor([[2, 3, 1], [3, 0, 0]])})
        >>> answer.scores.shape, answer.inside.shape
        (torch.Size([2, 2]), torch.Size([2, 3]))
    """

    def __init__(self, model: TextsModel, words: list[str], targets: Targets, vector_width: int = 0) -> None:
        super().__init__()
        width, self.words = model.hidden_dim, words
        self.embedding = nn.Embedding(FIRST_WORD + len(words), vector_width or width, padding_idx=PADDING)
        self.project = nn.Linear(vector_width, width) if vector_width else nn.Identity()
        self.convolution = nn.Conv1d(width, width, model.kernel_size, padding="same")
        self.dropout = nn.Dropout(model.dropout)
        basis = contmax.basis.GaussianBasis.covering(model.functions)
        self.attention = attention_over(basis, width, model)
        self.decision = Decision(self.attention.width, targets, words)

    def forward(self, batch: Batch) -> Answer:
        """Answers to ``batch["tokens"]`` (B, L), padded with 0."""
        mask = batch["tokens"] != PADDING
        context, heads = self.attention(self.encode(batch["tokens"]), mask=mask)
        scores = self.decision(self.dropout(context))
        return Answer(scores, self.decision.deviation, heads, middles(mask), mask, self.decision.targets)

    def encode(self, tokens: Tensor) -> Tensor:
        """What is attended to, (B, L, hidden_dim)."""
        vectors: Tensor = self.project(self.dropout(self.embedding(tokens)))
        return vectors + F.gelu(self.convolution(vectors.mT)).mT

    @torch.no_grad()
    def begin_with(self, vectors: dict[str, Tensor]) -> None:
        """Take over vectors of words; those of all others stay random, with the mean length of the known ones."""
        known = torch.stack([*vectors.values()])
        rows = self.embedding.weight
        scale = known.norm(dim=-1).mean() / rows[UNKNOWN:].norm(dim=-1).mean()
        rows *= scale.to(rows)
        for place, word in enumerate(self.words, start=FIRST_WORD):
            if word in vectors:
                rows[place] = vectors[word].to(rows)


@torch.no_grad()
def _figure(runs: Sequence[TrainedRun], place: int) -> Figure:
    valid, info = cast(Texts, runs[0].splits.valid), runs[0].splits.info
    words = [info["spelling"][i] for i in valid.spelled[place].tolist()]
    answers = [trained.model(trained.task.batch(trained.splits.valid, [place])) for trained in runs]
    panels = [
        (f"{trained.label}: {said(answer, trained.splits.info)}", head)
        for trained, answer in zip(runs, answers, strict=True)
        for head in answer.heads
    ]
    caption = f"The label is {truth(valid.target[place], info)}. {_CAPTION}"
    return text_figure(f"Attention over text {place + 1}", words, panels, caption)


class TextsTask(LabelledTask, settings=SETTINGS):
    """Classes or numbers of texts."""

    summary = "texts of your own with their labels, classes or numbers, by attention over the words"
    looks_at = "text"
    reads_texts = True
    knows: ClassVar = {"words": list, "sizes": dict}
    load = seedless(load)

    def build(self, model: TextsModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        info = splits.info
        return TextReader(model, info["words"], info["targets"], info["sizes"]["vector_width"])

    def initialise(self, network: nn.Module, data: TextsData, model: TextsModel) -> None:
        """Begin with the word vectors that the user has."""
        if data.vectors is None:
            return
        reader = cast(TextReader, network)
        vectors = read_vectors(data.vectors, reader.words)
        if not vectors:
            raise LabError(f"{data.vectors}: it has none of the {len(reader.words)} words of the training texts")
        reader.begin_with(vectors)

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Numbers of words, padded, and targets."""
        texts = cast(Texts, split)
        tokens = pad_sequence([texts.tokens[i] for i in indices], batch_first=True, padding_value=PADDING)
        return {"tokens": tokens, "target": texts.target[list(indices)]}

    def lengths(self, split: Sized) -> Sequence[int]:
        """Words of each text."""
        return [len(tokens) for tokens in cast(Texts, split).tokens]

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where the models look in some validation texts, by default of a length that suits a page."""
        lengths = self.lengths(runs[0].splits.valid)
        by_length = sorted(range(len(lengths)), key=lambda i: abs(lengths[i] - _WORDS))
        return [_figure(runs, place) for place in examples or by_length[:_TEXTS]]

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of a text, and the words that were attended."""
        found, known = split_words(" ".join(words))[: info["sizes"]["max_length"]], _numbers(info)
        if not found:
            raise UsageError('pass a text, e.g. contmax predict RUN "A film to remember."; - reads standard input')
        answer = model({"tokens": torch.tensor([[known.get(word, UNKNOWN) for word in found]])})
        inside = answer.inside[0].tolist()
        attended = [word for word, seen in zip(found, inside, strict=True) if seen]
        text = said(answer, info)
        lines = [text, f"attended, {len(attended)} of {len(found)} words: {' '.join(attended)}"]
        unknown = list(dict.fromkeys(word for word in found if word not in known))
        if unknown:
            lines.append(f"not in the vocabulary: {' '.join(unknown)}")
        panels = [(text, head) for head in answer.heads]
        return Prediction("\n".join(lines), text_figure("Attention over a text", found, panels, _CAPTION))

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether it is a table."""
        return bool(table_kind(path))

    def predict_file(
        self, model: nn.Module, info: dict[str, Any], path: Path, column: str = "", keep: Sequence[str] = ()
    ) -> Iterator[FileAnswer]:
        """The label of every text of a table; of continuous attention, the first and the last word of its interval."""
        known, most, classes = _numbers(info), info["sizes"]["max_length"], info["classes"]
        column = column or info.get("of_table", {}).get("column", TextsData.text)

        def read(row: TableRow) -> list[str]:
            words = split_words(row.text(column))[:most]
            if not words:
                raise row.place.problem(f"no words in the column {column}")
            return words

        def answer(texts: list[list[str]]) -> list[dict[str, Any]]:
            numbers = [torch.tensor([known.get(word, UNKNOWN) for word in words]) for words in texts]
            output = model({"tokens": pad_sequence(numbers, batch_first=True, padding_value=PADDING)})
            told = told_of(output, classes)
            for head, found in enumerate(output.heads):
                _add_words(told, texts, attended_interval(found), *(numbered(n, head, output.heads) for n in _ENDS))
            for each, words, inside in zip(told, texts, output.inside.tolist(), strict=True):
                # Padding ends the rows of `inside`.
                each["attended words"] = " ".join(w for w, seen in zip(words, inside, strict=False) if seen)
            return told

        return answered(table_inputs(path, column, keep, read), answer)

    @torch.no_grad()
    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """The words of a text, as many as the model reads."""
        reader, known = cast(TextReader, model), _numbers(info)
        words = split_words(given)[: info["sizes"]["max_length"]]
        if not words:
            raise UsageError("the text has no words; write a sentence or two")
        tokens = torch.tensor([[known.get(word, UNKNOWN) for word in words]])
        answer = reader({"tokens": tokens})
        shown = {"classes": info["classes"], "words": words}
        attend: Any = reader.attention.heads[0]
        return look_of(attend.attend, reader.encode(tokens), answer.heads, reader.decision.probabilities, **shown)


def _add_words(told: list[dict[str, Any]], texts: list[list[str]], ends: Any, first: str, last: str) -> None:
    """The numbers, from 1, of the first and the last word that an interval of each text touches."""
    if ends is None:
        return
    for each, words, low, high in zip(told, texts, *(end.tolist() for end in ends), strict=True):
        is_there = low < 1 and high > 0
        each[first] = 1 + int(max(low, 0) * len(words)) if is_there else ""
        each[last] = min(1 + int(high * len(words)), len(words)) if is_there else ""


def _numbers(info: dict[str, Any]) -> dict[str, int]:
    """Word → number, for the vocabulary of the model."""
    return {word: place for place, word in enumerate(info["words"], start=FIRST_WORD)}


TASK = TextsTask()

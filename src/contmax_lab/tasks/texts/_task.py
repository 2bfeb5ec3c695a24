"""The task: batches of texts, and what a model says of a new one."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from contmax_lab.contract import Batch, Look, Prediction, Splits
from contmax_lab.data import read_vectors
from contmax_lab.errors import LabError, UsageError
from contmax_lab.labelled import LabelledTask, Targets, look_of, said
from contmax_lab.tasks.texts._data import FIRST_WORD, PADDING, UNKNOWN, Texts, load
from contmax_lab.tasks.texts._model import TextReader
from contmax_lab.tasks.texts._settings import TextsData, TextsModel
from contmax_lab.tasks.texts._words import split_words


class TextsTask(LabelledTask):
    """Classes or numbers of texts."""

    name = "texts"
    summary = "texts of your own with their labels, classes or numbers, by attention over the words"
    data_config = TextsData
    model_config = TextsModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    looks_at = "text"

    def load(self, data: TextsData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

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
        """Where the models look in some validation texts."""
        from contmax_lab.tasks.texts._figures import read_texts

        return read_texts(runs, examples)

    def ask(self, model: nn.Module, info: dict[str, Any], words: Sequence[str]) -> Prediction:
        """The label of a text, and the words that were attended."""
        from contmax_lab.tasks.texts._figures import Looked, reading_figure

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
        return Prediction("\n".join(lines), reading_figure("Attention over a text", found, [Looked(text, answer)]))

    @torch.no_grad()
    def look(self, model: nn.Module, info: dict[str, Any], given: Any) -> Look:
        """The words of a text, as many as the model reads."""
        reader, known = cast(TextReader, model), _numbers(info)
        words = split_words(given)[: info["sizes"]["max_length"]]
        if not words:
            raise UsageError("the text has no words; write a sentence or two")
        tokens = torch.tensor([[known.get(word, UNKNOWN) for word in words]])
        answer = reader({"tokens": tokens})
        return look_of(reader.attention, reader.decision, reader.encode(tokens), answer, info["classes"], words=words)

    def known(self, info: dict[str, Any]) -> dict[str, Any]:
        """Labels, vocabulary and sizes."""
        return {"targets": info["targets"].plain(), "words": info["words"], "sizes": info["sizes"]}

    def informed(self, known: dict[str, Any]) -> dict[str, Any]:
        """The opposite of `known`."""
        targets = Targets.of_plain(known["targets"])
        return {**known, "targets": targets, "classes": targets.classes}


def _numbers(info: dict[str, Any]) -> dict[str, int]:
    """Of the words that the model knows."""
    return {word: place for place, word in enumerate(info["words"], start=FIRST_WORD)}


TASK = TextsTask()

"""The task: losses, translations and their scores."""

import math
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Batches, Cell, Prediction, Splits, Table, Task, TrainedRun
from contmax_lab.tasks.translation import TranslationData, TranslationModel, _scores
from contmax_lab.tasks.translation._attention import Guesses, attention_measures
from contmax_lab.tasks.translation._data import Pairs, load
from contmax_lab.tasks.translation._figures import alignments, predicted
from contmax_lab.tasks.translation._model import Translator
from contmax_lab.tasks.translation._prepared import PADDING, as_text
from contmax_lab.tasks.translation._table import TABLES
from contmax_lab.tasks.translation._transformer import Transformer


class Translation(Task):
    """Sentences of one language into another."""

    name = "translation"
    summary = "sentences into another language, by attention over the source sentence"
    data_config = TranslationData
    model_config = TranslationModel
    recipe_file = Path(__file__).with_name("recipe.yaml")
    curves = ("loss", "accuracy", "attended")
    repeats_steps = True

    def load(self, data: TranslationData, seed: int) -> Splits:
        """The split has a seed of its own, so that seeds of the training share it."""
        return load(data)

    def build(self, model: TranslationModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        kind = Transformer if model.network == "transformer" else Translator
        return kind(model, splits.info["vocabulary"])

    def batch(self, split: Sized, indices: Sequence[int]) -> Batch:
        """Numbers of pieces, padded, and where the texts are."""
        return cast(Pairs, split)[indices].batch()

    def lengths(self, split: Sized) -> Sequence[int]:
        """Pieces of the longer sentence of each pair, with its end."""
        pairs = cast(Pairs, split)
        lengths: list[int] = (torch.maximum(pairs.source.lengths, pairs.target.lengths) + 1).tolist()
        return lengths

    def loss(self, output: Guesses, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the pieces; every piece counts alike."""
        truth = batch["target"][:, 1:]
        losses = F.cross_entropy(
            output.logits.flatten(0, 1).float(),
            truth.flatten(),
            ignore_index=PADDING,
            label_smoothing=output.smoothing,
            reduction="none",
        )
        return losses.view(truth.shape).sum(-1), (truth != PADDING).sum(-1)

    def measures(self, output: Guesses, batch: Batch) -> dict[str, Tensor]:
        """How many pieces are guessed, of how many, and where the attention looks."""
        truth = batch["target"][:, 1:]
        said = truth != PADDING
        right = (output.logits.argmax(-1) == truth) & said
        return {"right": right.sum(-1), "pieces": said.sum(-1), **attention_measures(output, said)}

    def summarise(self, measures: dict[str, Tensor]) -> dict[str, float]:
        """Over all pieces: the share that is guessed; and what is measured of the attention, each piece alike."""
        count = measures.pop("pieces").double()
        right = measures.pop("right").double()
        means = {name: float((values * count).sum() / count.sum()) for name, values in measures.items()}
        return {"accuracy": float(right.sum() / count.sum()), **means}

    def evaluate(self, model: nn.Module, batches: Batches, info: dict[str, Any]) -> dict[str, float]:
        """Loss and perplexity of the references; of final weights also BLEU and chrF of translations."""
        translator = cast(Translator | Transformer, model)

        def translations(batch: Batch) -> dict[str, Any]:
            # As lists, since their lengths differ from batch to batch.
            return {"said": translator.translated(batch["source"]).tolist(), "row": batch["row"]}

        loss, gathered = self.measured(model, batches, translations if batches.final else lambda batch: {})
        said, rows = gathered.pop("said", None), gathered.pop("row", None)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 100.0)), **self.summarise(gathered)}
        if said is None or bool((rows < 0).any()):
            return metrics
        texts = [info["texts"][row] for row in rows.tolist()]
        spoken = [as_text(numbers, info["pieces"]) for numbers in said]
        kept = {_scores.FILE: _scores.as_lines([s for s, _ in texts], [t for _, t in texts], spoken)}
        for name, text in kept.items():
            batches.keep(name, text)
        return {**metrics, **self.score(kept)}

    def score(self, kept: Mapping[str, str]) -> dict[str, float]:
        """BLEU and chrF of the translations, where sacreBLEU is installed."""
        return _scores.scores(_scores.read_lines(kept[_scores.FILE])) if _scores.FILE in kept else {}

    def compare(self, kept: Sequence[tuple[Cell, Mapping[str, str]]]) -> dict[str, Any]:
        """Differences of BLEU, with intervals."""
        return _scores.differences(kept)

    def tables(self) -> Sequence[Table]:
        """Multi30k, Tatoeba, and sentences longer than in training."""
        return TABLES

    def figures(self, runs: Any, examples: Sequence[int] = ()) -> Any:
        """Where trained models look, piece by piece."""
        return alignments(runs, examples)

    def predict(self, trained: TrainedRun, words: Sequence[str]) -> Prediction:
        """The translation of a sentence, and where the network looked for each of its pieces."""
        return predicted(trained, words)


TASK = Translation()

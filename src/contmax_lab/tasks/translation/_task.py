"""The task translation: losses, translations and their scores, BLEU and chrF by sacreBLEU."""

import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.contract import Batch, Batches, Cell, Splits, Task, seedless
from contmax_lab.packages import require
from contmax_lab.tasks.translation import SETTINGS, TranslationModel
from contmax_lab.tasks.translation._attention import Guesses, attention_measures
from contmax_lab.tasks.translation._data import PADDING, as_text, load
from contmax_lab.tasks.translation._figures import alignments, predicted, translated_file
from contmax_lab.tasks.translation._model import Translator
from contmax_lab.tasks.translation._table import TABLES
from contmax_lab.tasks.translation._transformer import Transformer

FILE = "translations.tsv"
# Upper ends of the bins, in words of the source sentence, for which BLEU is measured; the last bin has all longer ones.
_BINS = (10, 15, 20)
_RESAMPLES = 1000
_SEED = 12345

Line = tuple[str, str, str]


def as_lines(source: Sequence[str], reference: Sequence[str], said: Sequence[str]) -> str:
    """A table without a header: source, reference, translation.

    Example:
        >>> as_lines(["ein hund"], ["a dog"], ["one dog"])
        'ein hund\\ta dog\\tone dog\\n'
    """
    rows = zip(source, reference, said, strict=True)
    return "".join("\t".join(" ".join(text.split()) for text in row) + "\n" for row in rows)


def read_lines(text: str) -> list[Line]:
    """The opposite of `as_lines`."""
    rows = [line.split("\t") for line in text.split("\n")[:-1]]
    return [(source, reference, said) for source, reference, said in rows]


def scores(lines: Sequence[Line]) -> dict[str, float]:
    """``bleu``, ``chrf``, ``length`` (of the translations over that of the references), and BLEU by length.

    ``bleu_to_10`` is that of the sources of at most 10 words, ``bleu_to_15`` of those of 11 to 15, and so on;
    ``bleu_longer`` of all longer ones. Without sacreBLEU there are none of these.
    """
    if not lines or importlib.util.find_spec("sacrebleu") is None:
        return {}
    bleu, chrf = _metrics()
    whole = _score(bleu, lines)
    found = {"bleu": whole.score, "chrf": _score(chrf, lines).score, "length": whole.ratio}
    for low, high in itertools.pairwise((-1, *_BINS, math.inf)):
        chosen = [line for line in lines if low < len(line[0].split()) <= high]
        if chosen:
            found["bleu_longer" if high == math.inf else f"bleu_to_{high}"] = _score(bleu, chosen).score
    return found


def signatures() -> dict[str, str]:
    """How BLEU and chrF were measured, as sacreBLEU says it."""
    found = {}
    for name, metric in zip(("bleu", "chrf"), _metrics(), strict=True):
        # A metric must have scored something before its signature can tell the number of references.
        metric.corpus_score(["a"], [["a"]])
        found[name] = str(metric.get_signature())
    return found


def differences(kept: Sequence[tuple[Cell, Mapping[str, str]]]) -> dict[str, Any]:
    """BLEU of every row minus that of the row that it is compared with, in the mean over seeds; bootstrap intervals.

    The row that it is compared with is the first that it names, or the first of the table. Each of 1000 draws of test
    sentences is used for all seeds of both rows.

    Args:
        kept: the cells of a table, with the file of translations of each.
    """
    if importlib.util.find_spec("sacrebleu") is None:
        return {}
    by_row: dict[str, list[list[Line]]] = {}
    named: dict[str, str] = {}
    for cell, texts in kept:
        if FILE in texts:
            by_row.setdefault(cell.row.label, []).append(read_lines(texts[FILE]))
            named[cell.row.label] = next(iter(cell.row.against), "")
    if len(by_row) < 2 or len({len(lines) for runs in by_row.values() for lines in runs}) > 1:
        return {}
    bleu = _metrics()[0]
    drawn = {label: _resampled(bleu, runs) for label, runs in by_row.items()}
    first, *_ = drawn
    others = {label: named[label] if named[label] in drawn else first for label in drawn}
    rows = {label: _difference(drawn[label], drawn[base]) for label, base in others.items() if label != base}
    signature = signatures()
    notes = [
        f"{label} − {others[label].lower()}: {d['bleu']:+.2f} BLEU, 95 % of {_RESAMPLES} paired bootstrap draws of "
        f"the test sentences within [{d['low']:+.2f}, {d['high']:+.2f}], p = {d['p']:.3f}."
        for label, d in rows.items()
    ]
    return {
        "against": {label: others[label] for label in rows},
        "rows": rows,
        "resamples": _RESAMPLES,
        "signatures": signature,
        "notes": [*notes, f"BLEU is {signature['bleu']}; chrF is {signature['chrf']}."],
    }


def _metrics() -> tuple[Any, Any]:
    package = require("sacrebleu", "Scoring translations")
    return package.BLEU(lowercase=True), package.CHRF(lowercase=True)


def _score(metric: Any, lines: Sequence[Line]) -> Any:
    return metric.corpus_score([line[2] for line in lines], [[line[1] for line in lines]])


def _resampled(bleu: Any, runs: Sequence[Sequence[Line]]) -> NDArray[np.float64]:
    """BLEU, first of all sentences, then of each draw, in the mean over the runs of a row."""
    random = np.random.default_rng(_SEED)
    statistics = [
        np.array(bleu._extract_corpus_statistics([x[2] for x in lines], [[x[1] for x in lines]])) for lines in runs
    ]
    count = len(runs[0])
    draws = [np.arange(count), *random.integers(count, size=(_RESAMPLES, count))]

    def score(own: NDArray[Any]) -> float:
        return float(bleu._compute_score_from_stats(own.sum(0).tolist()).score)

    return np.array([np.mean([score(own[draw]) for own in statistics]) for draw in draws])


def _difference(row: NDArray[np.float64], base: NDArray[np.float64]) -> dict[str, float]:
    """The difference, the interval that holds 95 % of the draws, and sacreBLEU's two-sided p of no difference."""
    difference, drawn = float(row[0] - base[0]), row[1:] - base[1:]
    low, high = np.quantile(drawn, (0.025, 0.975))
    beyond = np.abs(drawn - drawn.mean()) >= abs(difference)
    return {
        "bleu": difference,
        "low": float(low),
        "high": float(high),
        "p": float((beyond.sum() + 1) / (len(drawn) + 1)),
    }


class Translation(Task, settings=SETTINGS):
    """Sentences of one language into another."""

    summary = "sentences into another language, by attention over the source sentence"
    reproduces = TABLES
    curves = ("loss", "accuracy", "attended")
    repeats_steps = True
    reads_texts = True
    load = seedless(load)
    compare = staticmethod(differences)
    figures = staticmethod(alignments)
    predict = staticmethod(predicted)
    predict_file = staticmethod(translated_file)

    def build(self, model: TranslationModel, splits: Splits) -> nn.Module:
        """A network with fresh weights."""
        kind = Transformer if model.network == "transformer" else Translator
        return kind(model, splits.info["vocabulary"])

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
            # Lists, since the lengths of translations differ from batch to batch.
            return {"said": translator.translated(batch["source"]).tolist(), "row": batch["row"]}

        loss, gathered = self.measured(model, batches, translations if batches.final else lambda batch: {})
        said, rows = gathered.pop("said", None), gathered.pop("row", None)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 100.0)), **self.summarise(gathered)}
        if said is None or bool((rows < 0).any()):
            return metrics
        texts = [info["texts"][row] for row in rows.tolist()]
        spoken = [as_text(numbers, info["pieces"]) for numbers in said]
        lines = as_lines([s for s, _ in texts], [t for _, t in texts], spoken)
        batches.keep(FILE, lines)
        return {**metrics, **self.score({FILE: lines})}

    def score(self, kept: Mapping[str, str]) -> dict[str, float]:
        """BLEU and chrF of the translations, where sacreBLEU is installed."""
        return scores(read_lines(kept[FILE])) if FILE in kept else {}

    def holds_many(self, path: Path, info: dict[str, Any]) -> bool:
        """Whether it is a file: a sentence in each line."""
        return path.is_file()


TASK = Translation()

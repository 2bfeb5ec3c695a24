"""The tables of translation: the paper's experiment on data that is to be had, and long sentences."""

import dataclasses

from contmax_lab.contract import Metric, Row, Table, seeds

# Label → attention, α, the paper's BLEU.
_ROWS: dict[str, tuple[str, int, float | None]] = {
    "Discrete softmax": ("discrete", 1, 23.92),
    "Discrete sparsemax": ("discrete", 2, None),
    "Disc. + cont. softmax": ("combined", 1, 24.00),
    "Disc. + cont. sparsemax": ("combined", 2, 24.25),
    "Continuous sparsemax": ("continuous", 2, None),
}

# Label → what decides it; all by the recipe of transformers.
_TRANSFORMERS: dict[str, tuple[str, ...]] = {
    "Transformer, softmax": ("--model.alpha=1",),
    "Transformer, 1.5-entmax": ("--model.alpha=1.5",),
    "Transformer, α per head": ("--model.alpha=1.5", "--model.learned_alpha=true"),
}


def _rows(variant: str, *labels: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            label,
            variant,
            (f"--model.attention={attention}", f"--model.alpha={alpha}"),
            paper={} if bleu is None else {"test.bleu": bleu},
        )
        for label, (attention, alpha, bleu) in _ROWS.items()
        if not labels or label in labels
    )


_METRICS = (
    Metric("test.bleu", "BLEU", digits=2),
    Metric("test.chrf", "chrF", digits=2),
    Metric("valid.bleu", "validation", digits=2),
    Metric("test.perplexity", "perplexity", digits=2),
    Metric("test.attended", "pieces attended, %", scale=100, digits=1),
    Metric("test.entropy", "entropy", digits=2),
    Metric("test.monotone", "in order, %", scale=100, digits=1),
    Metric("parameters", "parameters", digits=0, spread=False),
)
_LENGTHS = (
    Metric("test.bleu_to_10", "BLEU, ≤ 10 words", digits=2),
    Metric("test.bleu_to_15", "11–15", digits=2),
    Metric("test.bleu_to_20", "16–20", digits=2),
    Metric("test.bleu_longer", "> 20", digits=2),
)
_NOTES = (
    "BLEU and chrF by sacreBLEU, all in small letters, beam 5. The test sentences are translated once, with the "
    "weights that guess most pieces of the validation translations. Means and sample deviations are over seeds of the "
    "training; all rows of one kind of network share one recipe.",
    "The paper's figures are of other data, IWSLT 2017 De–En, and of a larger network; they stand here for the order "
    "of the rows.",
    "Disc. + cont.: the sum of a discrete attention and of a continuous one whose density has the mean and the "
    "variance of the discrete weights, as in the paper; no parameters are added. Continuous: the second alone.",
    "pieces attended: share of the pieces of the source with a positive weight, or where the density is positive. "
    "entropy: of the shares of the attention that fall to the pieces, in nats. in order: of the steps from one piece "
    "of the reference to the next, those in which the middle of the attention does not move back.",
)

MULTI30K = Table(
    name="translation",
    title="Machine translation, Multi30k De–En (Martins et al. 2020, Figure 2)",
    rows=(
        *_rows("multi30k"),
        *(Row(label, "transformer", overrides) for label, overrides in _TRANSFORMERS.items()),
    ),
    repetitions=seeds(3),
    metrics=(*_METRICS[:-1], *_LENGTHS, _METRICS[-1]),
    notes=(
        "Multi30k De–En: 29,000 training pairs, 1,014 for validation, test 2016 (1,000 pairs).",
        *_NOTES,
        "Transformer: three layers each to read and to say, four heads, about as many parameters as the others, the "
        "same epochs, batches, warm-up and learning rates. Every attention in it is softmax, or 1.5-entmax, or has an "
        "α that each head learns, from 1.5 on. What is said of its attention is the mean of the heads of the last "
        "attention to the source: a piece is attended if one of the heads does.",
    ),
)

TATOEBA = Table(
    name="translation-tatoeba",
    title="Machine translation, Tatoeba De–En",
    rows=_rows("tatoeba", "Discrete softmax", "Disc. + cont. sparsemax"),
    repetitions=seeds(3),
    metrics=_METRICS,
    notes=("Tatoeba De–En: 164,740 training pairs of 6.5 words in the mean.", *_NOTES),
)

# As much data as short sentences are, but of any length: tells what a lack of long ones does.
_HALF = "a random half: "


def _control(row: Row) -> Row:
    against = () if row.label == "Discrete softmax" else (f"{_HALF}Discrete softmax",)
    overrides = (*row.overrides, "--data.any_length=true")
    return dataclasses.replace(row, label=f"{_HALF}{row.label}", overrides=overrides, paper={}, against=against)


LONG = Table(
    name="translation-long",
    title="Machine translation of sentences longer than in training, Multi30k De–En",
    rows=(
        *(
            dataclasses.replace(row, against=() if row.label == "Discrete softmax" else ("Discrete softmax",))
            for row in _rows("short")
        ),
        *map(_control, _rows("short", "Discrete softmax", "Disc. + cont. softmax", "Disc. + cont. sparsemax")),
    ),
    repetitions=seeds(3),
    metrics=tuple(dataclasses.replace(metric, compared=True) for metric in (_METRICS[0], *_LENGTHS)),
    notes=(
        "Multi30k De–En, of which only training pairs of at most 14 pieces on both sides are read, about half of "
        "them; words are those of the source sentence. A random half: as many training pairs, drawn at random from "
        "those of any length.",
        *_NOTES,
    ),
)

TABLES = (MULTI30K, TATOEBA, LONG)

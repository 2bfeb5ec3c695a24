"""The tables of document classification: the paper's, by its recipe and ours; few functions; time; places."""

import dataclasses

from contmax_lab.contract import Metric, Repetition, Row, Start, Table, seeds

_DISCRETE = {"Discrete softmax": (1, 90.78), "Discrete sparsemax": (2, 90.58)}
# Label → attention, α, the paper's accuracy by the number of basis functions.
_CONTINUOUS = {
    "Continuous softmax": ("continuous", 1, {32: 90.20, 64: 90.68, 128: 90.52}),
    "Continuous sparsemax": ("continuous", 2, {32: 90.52, 64: 89.63, 128: 90.90}),
    "Disc. + cont. softmax": ("combined", 1, {32: 90.98, 64: 90.69, 128: 89.62}),
    "Disc. + cont. sparsemax": ("combined", 2, {32: 91.10, 64: 91.18, 128: 90.98}),
}


def _discrete_rows(variant: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            label,
            variant,
            ("--model.attention=discrete", f"--model.alpha={alpha}"),
            paper={"test.accuracy": accuracy},
        )
        for label, (alpha, accuracy) in _DISCRETE.items()
    )


def _continuous_rows(variant: str, *sizes: int) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"{label}, K = {size}",
            variant,
            (f"--model.attention={attention}", f"--model.alpha={alpha}", f"--model.num_basis={size}"),
            paper={"test.accuracy": paper[size]} if size in paper else {},
        )
        for label, (attention, alpha, paper) in _CONTINUOUS.items()
        for size in sizes
    )


def _all_rows(variant: str) -> tuple[Row, ...]:
    heads = (
        Row(
            f"Continuous sparsemax, {head}, K = 64",
            variant,
            ("--model.attention=continuous", f"--model.head={head}", "--model.num_basis=64"),
        )
        for head in ("gates", "narrow")  # they begin narrower than the text, unlike the paper's
    )
    return (*_discrete_rows(variant), *_continuous_rows(variant, 32, 64, 128), *heads)


START = Start("language/imdb", "model.start", ("data.", "model.hidden_dim="))
_METRICS = (
    Metric("test.accuracy", "accuracy", scale=100, digits=2, compared=True),
    Metric("valid.accuracy", "validation", scale=100, digits=2),
    # By seed: heads that stay wide with one seed and not with another have no mean that says anything.
    Metric("test.attended", "words attended, %, by seed", scale=100, digits=1, each=True),
    Metric("parameters", "parameters", digits=0, spread=False),
)
_DATA = (
    "IMDB reviews of Maas et al. 2011, official split. 10 % of the training half, the same share of both labels, are "
    "validation. The test half has films of its own (though 123 texts, half a per cent, stand in both halves), and so "
    "should validation: where the archive's urls_*.txt say which film a review is about, whole films are held out; "
    "where only the ids are known, as for these figures, stretches of neighbouring ids, for reviews of one film and "
    "label lie side by side. A film's reviews of the other label then remain in training, and validation, which the "
    "weights are chosen by, is a little too easy. The test half is measured once, with the weights that are best on "
    "validation. Means and sample deviations are over seeds of the training.",
    "Words: those of the training reviews, without validation, that have a vector (61,518); all others are one unknown "
    "word, a per cent of the text.",
)
_ATTENDED = (
    "words attended: those with a positive weight, or where the density is positive. The paper's head begins wider "
    "than the text, and labels give it little reason to become narrow. gates: a gate on each word, and the density "
    "covers the open ones. narrow: the paper's head, but it sees where words stand and begins with two fifths of the "
    "text."
)
_VECTORS = (
    "Word vectors: GloVe 6B, 50 and 100 columns side by side, {}; the paper's are GloVe 840B with 300 columns, {}."
)
_STARTED = (
    "All rows share one recipe, documents/imdb, and one start, language/imdb: word vectors and LSTM have learned to "
    "guess the next and the previous word of the training reviews, which the paper's have not. One start serves all "
    "seeds, so that the deviations do not show its share of chance."
)
NOTES = (*_DATA, _VECTORS.format("trained further", "kept as they are"), _STARTED, _ATTENDED)

_SPARSE_OR_DENSE = {
    f"{name} sparsemax minus {name[0].lower()}{name[1:]} softmax with as many functions": tuple(
        (f"{name} sparsemax, K = {size}", f"{name} softmax, K = {size}") for size in (32, 64, 128)
    )
    for name in ("Disc. + cont.", "Continuous")
}

PAPER = Table(
    name="documents-paper",
    title="Document classification, IMDB, with the paper's settings (Martins et al. 2020, Table 1)",
    rows=_all_rows("paper"),
    repetitions=seeds(3),
    metrics=_METRICS,
    notes=(
        *_DATA,
        "The settings of the paper's appendix, documents/paper: word vectors kept as they are, batches of 16, Adam "
        "with a learning rate of 0.001 and an L2 penalty of 0.0001, at most 10 epochs, stopped after 5 without a "
        "better validation accuracy, no dropout, no language model to begin with; with disc. + cont. σ² is the "
        "variance of the weights. Not printed there, and ours: a ridge penalty of 0.01, batches of reviews of similar "
        "length.",
        _VECTORS.format("kept as they are", "kept as they are too"),
        _ATTENDED,
    ),
    baseline="Discrete softmax",
    ranked="test.accuracy",
    families=_SPARSE_OR_DENSE,
)

NO_START = dataclasses.replace(
    PAPER,
    name="documents-no-start",
    title="Document classification, IMDB, by our recipe without a language model to begin with",
    rows=_all_rows("imdb"),
    notes=(
        *_DATA,
        "All rows share one recipe, documents/imdb: dropout, word dropout, four epochs with a falling learning rate.",
        _VECTORS.format("trained further", "kept as they are"),
        _ATTENDED,
    ),
)

_PAPER_TRAINING = (
    "--training.epochs=10",
    "--training.batch_size=16",
    "--training.weight_decay=0.0001",
    "--training.patience=5",
    "--training.schedule=constant",
    "--training.clip_norm=0",
)
_OUR_TRAINING = (
    "--training.epochs=4",
    "--training.batch_size=32",
    "--training.weight_decay=0",
    "--training.patience=0",
    "--training.schedule=cosine",
    "--training.clip_norm=1.0",
)
# In what the two recipes differ: what it is → variant, and overrides that take one thing from the other recipe.
_EXCHANGED: dict[str, tuple[str, tuple[str, ...]]] = {
    "Paper's settings": ("paper", ()),
    "Paper's settings, our matching": ("paper", ("--model.matching=exact",)),
    "Paper's settings, our penalty": ("paper", ("--model.penalty=0.1",)),
    "Paper's settings, our dropout": ("paper", ("--model.dropout=0.5", "--model.word_dropout=0.1")),
    "Paper's settings, vectors trained": ("paper", ("--model.frozen=false",)),
    "Paper's settings, our schedule": ("paper", _OUR_TRAINING),
    "Our recipe": ("imdb", ()),
    "Our recipe, paper's matching": ("imdb", ("--model.matching=paper",)),
    "Our recipe, paper's penalty": ("imdb", ("--model.penalty=0.01",)),
    "Our recipe, no dropout": ("imdb", ("--model.dropout=0", "--model.word_dropout=0")),
    "Our recipe, vectors kept": ("imdb", ("--model.frozen=true",)),
    "Our recipe, paper's schedule": ("imdb", _PAPER_TRAINING),
}


def _exchanged(what: str) -> tuple[Row, Row]:
    variant, overrides = _EXCHANGED[what]
    dense, sparse = (
        Row(f"{what}: {label}", variant, ("--model.attention=combined", f"--model.alpha={alpha}", *overrides))
        for label, alpha in (("softmax", 1), ("sparsemax", 2))
    )
    return dense, dataclasses.replace(sparse, against=(dense.label,))


EXCHANGED = Table(
    name="documents-exchanged",
    title="Document classification: which setting turns the order of softmax and sparsemax? IMDB",
    rows=tuple(row for what in _EXCHANGED for row in _exchanged(what)),
    repetitions=seeds(3),
    metrics=_METRICS,
    notes=(
        *_DATA,
        "Disc. + cont. attention, K = 64. In documents-paper its sparsemax is above its softmax, in "
        "documents-no-start below. Here one setting at a time is taken from the one recipe into the other: the "
        "matching (the density has the variance of the weights, or takes it for its σ²), the penalty of the ridge fit "
        "(0.01 or 0.1), dropout of channels and words, whether word vectors are trained, and the training (epochs, "
        "batches, weight decay, stopping, schedule, clipping).",
        _ATTENDED,
    ),
)

IMDB = dataclasses.replace(
    PAPER,
    name="documents",
    title="Document classification, IMDB, begun with a language model (Martins et al. 2020, Table 1)",
    rows=(*_discrete_rows("imdb"), *_continuous_rows("imdb", 32, 64, 128)),
    repetitions=seeds(5),
    notes=NOTES,
    start=START,
)

FEW_FUNCTIONS = Table(
    name="documents-few",
    title="Document classification with few basis functions, IMDB",
    # Sparsemax against softmax with as many basis functions: is what sparsity costs a matter of how many there are?
    rows=tuple(
        dataclasses.replace(row, paper={}, against=(row.label.replace("sparsemax", "softmax"),))
        for row in _continuous_rows("imdb", 8, 16, 32, 64, 128)
    ),
    repetitions=seeds(3),
    metrics=_METRICS,
    notes=NOTES,
    start=START,
)

SPEED = Table(
    name="documents-speed",
    title="Document classification: time per epoch, IMDB",
    rows=_all_rows("imdb"),
    repetitions=(Repetition("seed-0", ("--seed=0", "--training.epochs=2", "--training.evaluation_batch_size=256")),),
    metrics=(Metric("timing.seconds_per_epoch", "seconds per epoch", digits=2),),
    notes=(
        "Two epochs of each, validation included, one training at a time, alone on the GPU; a single measurement, so "
        "that differences of a second mean nothing.",
    ),
)


# Label → overrides of the model.
_PLACES = {
    "Discrete softmax": ("attention=discrete", "alpha=1"),
    "Discrete sparsemax": ("attention=discrete",),
    "Continuous sparsemax, paper's head": ("attention=continuous",),
    "Continuous sparsemax, gates": ("attention=continuous", "head=gates"),
    "Continuous sparsemax, gates, words": ("attention=continuous", "head=gates", "values=words"),
    "Disc. + cont. sparsemax, gates": ("attention=combined", "head=gates"),
}
_DELETION = (
    "paper's head: a pooled summary of the states says where to look. gates: each word has a gate, and the density "
    "covers the open ones; with disc. + cont. the shares of the gates are the discrete weights. words: what is "
    "attended to are the word vectors, each mapped by itself, and the LSTM decides only where to look; elsewhere it is "
    "the states of the LSTM, each of which knows the whole review. K = 64 basis functions, half of width .1, half of "
    ".5; for words all of width 1/64.",
    "words selected: what the deletion test takes for attended. These are the words attended; but softmax and shares "
    "of gates attend to every word a little, and there they are the fewest words that hold 95 % of the weight (with "
    "disc. + cont. and those in the support of the density).",
    "kept: accuracy of the same model, not trained again, on the selected words alone, read as if they were the whole "
    "review; removed: on the others. random kept, random removed: likewise with as many words drawn at random in each "
    "review, by the seed of the training: a contiguous stretch where there is a density, a set of single words where "
    "there are weights alone. Where no word is left the answer is a coin and counts 1/2. If the selected words "
    "matter, kept is close to accuracy and above random kept, and removed is below random removed.",
)

PLACES = Table(
    name="documents-places",
    title="Document classification: where the attentions look, and whether it matters, IMDB",
    rows=tuple(
        Row(label, "imdb", (*(f"--model.{change}" for change in changes), "--data.deletion=true"))
        for label, changes in _PLACES.items()
    ),
    repetitions=seeds(3),
    metrics=(
        Metric("test.accuracy", "accuracy", scale=100, digits=2),
        _METRICS[2],
        Metric("test.selected", "words selected, %", scale=100, digits=1),
        Metric("test.kept", "kept", scale=100, digits=2),
        Metric("test.removed", "removed", scale=100, digits=2),
        Metric("test.random_kept", "random kept", scale=100, digits=2),
        Metric("test.random_removed", "random removed", scale=100, digits=2),
    ),
    notes=(*NOTES, *_DELETION),
    start=START,
)

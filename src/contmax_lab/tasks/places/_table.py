"""The table of places: every attention in every setting; and two small ones for the demo."""

import dataclasses

from contmax_lab.contract import Metric, Row, Table, seeds

_KINDS = {
    "Mean": ("mean", 1.0),
    "Discrete softmax": ("discrete", 1.0),
    "Discrete entmax-1.5": ("discrete", 1.5),
    "Discrete sparsemax": ("discrete", 2.0),
    "Discrete, learned α": ("discrete", None),
    "Continuous softmax": ("continuous", 1.0),
    "Continuous sparsemax": ("continuous", 2.0),
    "Continuous, learned α": ("continuous", None),
    "Combined sparsemax": ("combined", 2.0),
    "Multihead sparsemax": ("multihead", 2.0),
}
# About the radius of a digit on its canvas: 8 of 24 pixels across.
_DIGIT_RADIUS = 0.16
# Hidden values would teach a size; here it is stated.
_STATED_SIZE = ("--model.hide=0", f"--model.least_half_width={_DIGIT_RADIUS}")


def _row(setting: str, variant: str, kind: str, *overrides: str, also: str = "") -> Row:
    """One attention in one setting; `also` says what is special about it."""
    attention, alpha = _KINDS[kind]
    chosen = (f"--model.alpha={alpha}",) if alpha else ("--model.alpha=1.5", "--model.learn_alpha=true")
    label = f"{setting}: {kind}{also}"
    return Row(label, variant, (f"--model.attention={attention}", *chosen, *overrides))


def _rows(setting: str, variant: str, *overrides: str) -> tuple[Row, ...]:
    return tuple(_row(setting, variant, kind, *overrides) for kind in _KINDS)


def _turns(dropped: float) -> tuple[Row, ...]:
    setting, share = f"(d) {dropped:.0%} not observed", f"--data.dropped={dropped}"
    with_time = ("--model.time_channel=true", share)
    return (
        *_rows(setting, "turns", share),
        _row(setting, "turns", "Discrete softmax", *with_time, also=", time as a channel"),
        _row(setting, "turns", "Discrete sparsemax", *with_time, also=", time as a channel"),
    )


def _spans(labelled: float) -> tuple[Row, ...]:
    setting, share = f"(a) 4×, spans of {labelled:.0%}", f"--data.labelled={labelled}"
    # Spans teach the size, so that no values need to be hidden.
    taught = (share, "--model.hide=0")
    return tuple(_row(setting, "utterance", kind, *taught) for kind in ("Continuous softmax", "Continuous sparsemax"))


PLACES = Table(
    name="places",
    title="Places: is what is attended to where the answer is?",
    rows=(
        *_rows("(a) 16×", "utterance-16"),
        *_rows("(a) 1.5× to 8×", "utterance-mixed"),
        *_rows("(a) 4×", "utterance"),
        *(
            _row("(a) 4×, BiGRU", "utterance", kind, "--model.encoder=bigru")
            for kind in ("Discrete softmax", "Discrete sparsemax", "Continuous sparsemax", "Combined sparsemax")
        ),
        *(row for labelled in (0.01, 0.1, 1.0) for row in _spans(labelled)),
        Row("(b) pair: Query only", "pair", ("--model.attention=query",)),
        *_rows("(b) pair", "pair"),
        *_rows("(c) digit", "digit"),
        _row(
            "(c) digit",
            "digit",
            "Continuous sparsemax",
            *_STATED_SIZE,
            also=f", least half-width {_DIGIT_RADIUS}",
        ),
        *(row for dropped in (0.3, 0.5, 0.7) for row in _turns(dropped)),
    ),
    repetitions=seeds(5),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=1),
        Metric("test.iou", "IoU", digits=3),
        Metric("test.hull_iou", "IoU of the hull", digits=3),
        Metric("test.inside", "mass inside", digits=3),
        Metric("test.coverage", "coverage", digits=3),
        Metric("test.centre", "centre inside, %", scale=100, digits=1),
        Metric("test.size_correlation", "correlation of size", digits=2),
        Metric("test.chosen", "right one, %", scale=100, digits=1),
        Metric("test.kept_accuracy", "kept only, %", scale=100, digits=1),
        Metric("test.deleted_accuracy", "deleted, %", scale=100, digits=1),
        Metric("timing.seconds", "seconds", digits=1),
    ),
    notes=(
        "Models learn from the answers alone; where the answer is, is only measured, save in rows with spans: there "
        "that share of the training examples has the Fenchel–Young loss of the density to its true span as well. On "
        "the test examples, mean ± standard deviation over seeds of the training.",
        "(a) one utterance of JapaneseVowels in noise that makes it so many times longer: who of nine speaks? (b) two "
        "utterances of different speakers in noise, each played forwards or backwards, and the query names one of "
        "them: is that one played backwards? (c) a digit of scikit-learn's, 8 × 8 pixels, on a canvas of 24 × 24 among "
        "six fragments of other digits and noise: which? (d) two speak in turn in noise, and a share of the frames "
        "was not observed, half of it in long gaps: who speaks longer? Gaps make the number of observations a poor "
        "guide, and times a better one.",
        "Training examples are placed anew in every step. Convolutions of 5 frames (9 × 9 pixels) make the values, so "
        "that nothing outside the support but its next two frames (four pixels) can matter; gates and scores come from "
        "the same values, or in the rows named BiGRU from the states of a recurrent network. Rows of a setting share "
        "a recipe; only the attention differs.",
        "Attended to is where a weight or the density is positive; for softmax and the Gaussian, which are so "
        "everywhere, the smallest set with 95 % of the mass. An observation stands for the part of the interval that "
        "is nearest to it. IoU: that set against the true interval or the box of the digit's scan; a disk that touches "
        "all sides of a square has 0.785. IoU of the hull: the smallest interval or box around the set. Centre: of "
        "mass. Correlation of size: length or area of the set against the true one, which varies only in 1.5× to 8× "
        "and (d). Right one: more mass in the utterance that was asked for than in the other.",
        "Kept only: accuracy when all input that attended values do not depend on is replaced by new noise or clutter. "
        "Deleted: when the rest is.",
        "Choices were made in single trainings, mostly of continuous sparsemax, with test figures in view beside those "
        "of validation: the number of epochs; in (d) also the event's share of the series, ten functions and a "
        "penalty of 2, as with 16 functions and 0.01 continuous sparsemax was below discrete softmax; in (b) the "
        "product of values and query, without which neither found the place. Learning rates were not searched for row "
        "by row.",
        "Seconds: of a training with its evaluations, by the clock, others running beside.",
    ),
    needs_data=False,
)

# What a new user has not tuned yet. The learning rate of the recipe is 0.01: 2.5 times less, 2.5 times more.
_UNTUNED = {
    "learning rate 0.004": "--training.learning_rate=0.004",
    "learning rate 0.025": "--training.learning_rate=0.025",
    "half as many frames": "--data.rate=0.5",
    "twice as many frames": "--data.rate=2.0",
}

ROBUST = Table(
    name="places-robust",
    title="Places: is it found with other learning rates and frame rates?",
    rows=tuple(
        _row(setting, "utterance", kind, override)
        for setting, override in _UNTUNED.items()
        for kind in ("Discrete softmax", "Continuous softmax", "Continuous sparsemax")
    ),
    repetitions=PLACES.repetitions,
    metrics=(*PLACES.metrics[:6], PLACES.metrics[-1]),
    notes=(
        "One utterance in noise that makes it four times longer, as in (a) 4× of the table places, with all settings "
        "as there but the one that is named; nothing was tuned. Other numbers of frames are interpolated: with half as "
        "many, convolutions of five frames see twice as much of the time.",
    ),
    needs_data=False,
)

# Setting → variant and overrides: the data that the default was made with, and data that it was not.
_SETTINGS = {
    "an utterance, 4×": ("utterance",),
    "an utterance, 1.5× to 8×": ("utterance-mixed",),
    "an utterance, 16×": ("utterance-16",),
    "an utterance, 4×, BiGRU": ("utterance", "--model.encoder=bigru"),
    "a motion, 4×": ("motion",),
    "a digit row by row, 4×": ("rows",),
}


def _found(setting: str, variant: str, *overrides: str) -> tuple[Row, ...]:
    discrete, continuous = (
        _row(setting, variant, kind, *overrides) for kind in ("Discrete softmax", "Continuous sparsemax")
    )
    return discrete, dataclasses.replace(continuous, against=(discrete.label,))


FOUND = Table(
    name="places-found",
    title="Places: does the default find them?",
    rows=tuple(row for setting, chosen in _SETTINGS.items() for row in _found(setting, *chosen)),
    repetitions=seeds(3),
    metrics=(
        dataclasses.replace(PLACES.metrics[0], compared=True),
        dataclasses.replace(PLACES.metrics[1], compared=True),
        *PLACES.metrics[2:6],
        PLACES.metrics[-1],
    ),
    notes=(
        "The head that ContinuousAttention makes by itself, no option of it changed, beside discrete softmax in the "
        "same network. Something lies at a random place in noise that makes the series so many times longer; models "
        "learn what it is, never where.",
        "An utterance: as in the table places; with these data the default was made. A motion: 100 observations by a "
        "watch (BasicMotions, 32 to train, 40 in ten places each to test, four classes). A digit row by row: the scans "
        "of scikit-learn as series of eight observations of eight pixels (1,197 to train, 400 to test). These two were "
        "named before anything was trained on them, and nothing was tuned: all settings are those of an utterance at "
        "4×, save the number of epochs, which makes about as many steps, 720.",
        "On the test examples, mean ± standard deviation over seeds of the training. Attended to is where the density "
        "is positive; for softmax the smallest set with 95 % of the weight. Seconds: of a training with its "
        "evaluations, by the clock, others running beside.",
    ),
    needs_data=False,
)

# Frames of a series of (d), of which a share is not observed.
_TURNS_CELLS = 96
_CHOSEN = (
    "The event's share of the series, ten functions and a penalty of 2 were chosen earlier in single trainings, with "
    "test figures in view: with 16 functions and 0.01 continuous sparsemax was below discrete softmax."
)
# How discrete weights may know the times.
_TOLD = {
    "": (),
    ", time as a channel": ("--model.time_channel=true",),
    " × Δt": ("--model.by_time=true",),
    ", on a grid": (f"--model.grid={_TURNS_CELLS}",),
}


def _with_times(dropped: float) -> tuple[Row, ...]:
    setting, share = f"{dropped:.0%} not observed", f"--data.dropped={dropped}"
    discrete = (
        _row(setting, "turns", kind, share, *told, also=also)
        for also, told in _TOLD.items()
        for kind in ("Discrete softmax", "Discrete sparsemax")
    )
    continuous = (_row(setting, "turns", kind, share) for kind in ("Continuous softmax", "Continuous sparsemax"))
    against = f"{setting}: Discrete softmax × Δt"
    return tuple(
        row if row.label == against else dataclasses.replace(row, against=(against,))
        for row in (*discrete, *continuous)
    )


TIMES = Table(
    name="places-times",
    title="Places: what are times worth where observations are missing?",
    rows=tuple(row for dropped in (0.3, 0.5, 0.7) for row in _with_times(dropped)),
    repetitions=seeds(5),
    metrics=(dataclasses.replace(PLACES.metrics[0], compared=True), *PLACES.metrics[1:6], PLACES.metrics[-1]),
    notes=(
        "Two utterances in turn in noise, as in (d) of the table places: a share of the frames was not observed, half "
        "of it in long gaps, and the one that takes longer is to be named. The continuous rows are the default, no "
        "option of the head changed.",
        "× Δt: discrete weights times the length of time that each observation stands for, normalised again. On a "
        f"grid: the observations are first interpolated to the {_TURNS_CELLS} frames of a whole series. Time as a "
        "channel: the position of an observation is one of its channels.",
        _CHOSEN,
        "On the test examples, mean ± standard deviation over seeds of the training.",
    ),
    needs_data=False,
)

_DEMO_KINDS = ("Discrete softmax", "Discrete sparsemax", "Continuous sparsemax")
_DEMO_NOTE = (
    "On the test examples, one training each; contmax reproduce places trains ten kinds of attention with five seeds "
    "in more settings. IoU: the set of what is attended to against the truth, 1 = the same; for softmax, which leaves "
    "nothing out, the smallest set with 95 % of the weight. The recipe was chosen in a few trainings, mostly of "
    "continuous sparsemax, with test figures in view."
)


def _demo_rows(variant: str) -> tuple[Row, ...]:
    """Whatever the recipe says may be changed for all trainings of the demo, so that rows say little themselves."""
    rows = (_row("", variant, kind) for kind in _DEMO_KINDS)
    return tuple(dataclasses.replace(row, label=row.label.removeprefix(": ")) for row in rows)


UTTERANCE = Table(
    name="places-utterance",
    title="Where is the speech? An interval is found",
    rows=_demo_rows("utterance"),
    repetitions=PLACES.repetitions[:1],
    metrics=PLACES.metrics[:2],
    notes=(_DEMO_NOTE,),
    needs_data=False,
    in_demo=True,
    about=(
        "An utterance lies at a random place in noise that makes it four times as long: which of nine men speaks? "
        "Models learn from the speakers alone, never from places; but the place is known, so one can see whether what "
        "a model attends to is where the answer is. Continuous sparsemax attends to a single interval. Two "
        "convolutions over time, attention, a linear classifier; the utterances are those of the section Who speaks?"
    ),
)

CANVAS = dataclasses.replace(
    UTTERANCE,
    name="places-digit",
    title="Where is the digit? A region is found",
    rows=_demo_rows("digit-sized"),
    notes=(
        _DEMO_NOTE,
        f"Continuous sparsemax has a least half-width of {_DIGIT_RADIUS} of the canvas, about the radius of a digit: "
        "labels teach the place, but a few pixels suffice for the answer, so that the size is better stated.",
    ),
    about=(
        "A digit of 8 × 8 pixels lies at a random place on a canvas of 24 × 24, among fragments of other digits and "
        "noise: which digit? Again models learn from the answers alone. Two convolutions, attention over 12 × 12 cells "
        "or over the continuous plane, where continuous sparsemax attends to a single ellipse, a linear classifier."
    ),
)

"""The table: thirteen rows on two sets, each with two shares of its observations dropped; three settings in a cell."""

from contmax_lab.contract import Metric, Repetition, Row, Table

_SEEDS = 5
# Each set with the shares that are dropped: BasicMotions has 100 frames, JapaneseVowels 7 to 29.
_SHARES = (("vowels", 0.5), ("vowels", 0.8), ("motions", 0.8), ("motions", 0.95))
_BOOSTING, _CONTROL = "Summary, gradient boosting", "Intervals, weights of observations"
_GRU, _MTAN, _FRAMES = "GRU-D", "mTAN", "Frames, discrete softmax"
_RATES = tuple(
    (f"--training.learning_rate={rate}", f"--model.dropout={dropout}")
    for rate, dropout in ((0.001, 0.4), (0.003, 0.4), (0.003, 0.6))
)
_RIDGES = tuple((f"--model.ridge={ridge}",) for ridge in (0.007, 0.02, 0.06))
_TREES = tuple((f"--model.leaves={leaves}",) for leaves in (4, 8, 16))


def _ours(name: str, variant: str) -> Row:
    return Row(f"Intervals, continuous, α {name}", variant, against=(_CONTROL, _GRU, _MTAN, _FRAMES), tries=_RATES)


def _group(name: str, dropped: float) -> str:
    return f"{name}, {dropped:.0%} dropped"


IRREGULAR = Table(
    name="irregular",
    title="Irregular series: speakers (JapaneseVowels) and activities (BasicMotions), most observations dropped",
    rows=(
        Row("Summary, logistic regression", "logistic", tries=_RIDGES),
        Row(_BOOSTING, "boosting", tries=_TREES),
        Row(_GRU, "gru-d", tries=_RATES),
        Row(_MTAN, "mtan", tries=_RATES),
        Row(_FRAMES, "frames-discrete", tries=_RATES),
        Row("Frames, continuous, α = 2", "frames-continuous", tries=_RATES),
        Row("Intervals, attention with time features", "scores", tries=_RATES),
        Row(_CONTROL, "kernel", tries=_RATES),
        Row("Intervals, weights × Δt", "kernel-dt", tries=_RATES),
        _ours("= 1", "gaussian"),
        _ours("= 1.5", "biweight"),
        _ours("= 2", "parabola"),
        _ours("learned", "learned-alpha"),
    ),
    repetitions=tuple(
        Repetition(
            f"{name}-{dropped}-{seed}",
            (f"--data.name={name}", f"--data.dropped={dropped}", f"--data.split={seed}", f"--seed={seed}"),
            (_group(name, dropped),),
        )
        for seed in range(_SEEDS)
        for name, dropped in _SHARES
    ),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=1, compared=True),
        Metric("test.f1", "macro-F1, %", scale=100, digits=1),
        Metric("test.auroc", "AUROC", digits=3),
        Metric("timing.seconds_per_epoch", "s per epoch", digits=2, spread=False),
        Metric("test.alpha", "α", digits=2, spread=False),
    ),
    notes=(),
    needs_data=False,
    baseline=_BOOSTING,
    shown=tuple(_group(name, dropped) for name, dropped in _SHARES),
)

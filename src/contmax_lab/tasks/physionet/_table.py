"""The table: eleven rows in two groups of splits, three settings tried in each cell."""

from contmax_lab.contract import Metric, Repetition, Row, Table
from contmax_lab.tasks.physionet._stays import FOLDS

_SEEDS = 5
_BOOSTING, _CONTROL = "Summary, gradient boosting", "Intervals, weights of observations"


# The learning rates and dropouts that every network tries.
_RATES = tuple(
    (f"--training.learning_rate={rate}", f"--model.dropout={dropout}")
    for rate, dropout in ((0.001, 0.4), (0.003, 0.4), (0.003, 0.6))
)
_RIDGES = tuple((f"--model.ridge={ridge}",) for ridge in (0.007, 0.02, 0.06))
_TREES = tuple((f"--model.leaves={leaves}",) for leaves in (4, 8, 16))


def _ours(name: str, variant: str) -> Row:
    return Row(f"Intervals, continuous, α {name}", variant, against=(_CONTROL, _BOOSTING), tries=_RATES)


PHYSIONET = Table(
    name="physionet",
    title="Mortality in intensive care from irregular series (PhysioNet/CinC Challenge 2012)",
    rows=(
        Row("Summary, logistic regression", "logistic", tries=_RIDGES),
        Row(_BOOSTING, "boosting", tries=_TREES),
        Row("GRU-D on hours", "gru-d", tries=_RATES),
        Row("mTAN", "mtan", tries=_RATES),
        Row("Intervals, attention with time features", "scores", tries=_RATES),
        Row(_CONTROL, "kernel", tries=_RATES),
        Row("Intervals, weights × Δt", "kernel-dt", tries=_RATES),
        _ours("= 1", "gaussian"),
        _ours("= 1.5", "biweight"),
        _ours("= 2", "parabola"),
        _ours("learned", "learned-alpha"),
    ),
    repetitions=(
        *(
            Repetition(
                f"b-{fold}", ("--data.sets=ab", "--data.split=folds", f"--data.fold={fold}", f"--seed={fold}"), ("B",)
            )
            for fold in range(FOLDS)
        ),
        *(
            Repetition(f"a-{seed}", ("--data.sets=a", "--data.split=mtan", f"--seed={seed}"), ("A",))
            for seed in range(_SEEDS)
        ),
    ),
    metrics=(
        Metric("test.auroc", "AUROC", digits=3, compared=True),
        Metric("test.auprc", "AUPRC", digits=3, compared=True),
        Metric("timing.seconds_per_epoch", "s per epoch", digits=2, spread=False),
        Metric("test.moved_without_attended", "p moves, looked at deleted", digits=3, spread=False),
        Metric("test.moved_without_random", "p moves, others deleted", digits=3, spread=False),
        Metric("test.interval_hours", "interval, hours", digits=1, spread=False),
        Metric("test.alpha", "α", digits=2, spread=False),
    ),
    notes=(
        "B: all 8,000 stays of sets a and b, 1,122 of which end with death in hospital; five folds with the same share "
        "of deaths, each of which tests once; of the other stays a fifth is for validation. A: set a alone, the split "
        "of the code of mTAN (seeds 42 and 11; 2,560, 640 and 800 stays, in the order of the records), five seeds of "
        "the training; its deviations are those of the training alone: with 800 test stays another split may differ by "
        ".02. Scales, cuts and logarithms are those of the training stays.",
        "Every row tries three settings in every cell, and the one with the least loss on the validation stays counts, "
        "at its best epoch: the networks learning rates .001 and .003 with dropout .4, and .003 with .6; logistic "
        "regression the penalties .007, .02, .06; boosting 4, 8, 16 leaves, with as many of 300 trees as are best. "
        "Widths, epochs (8, GRU-D 12, mTAN 16) and initial intervals were chosen before, from validation figures of "
        "single folds of B; the intervals were looked at more often than the baselines.",
        "Summary: of each of the 37 variables the last value, the logarithm of the count and of the time since, and "
        "what is static. Intervals: of each variable three learned intervals of the time before its own last "
        "observation; the mean of the value, and of what is above and below half a deviation, and the intensity of the "
        "observations in each; a linear decision, solved for before the training as logistic regression, to which a "
        "hidden layer is added. Continuous: means of a ridge fit of eight Gaussians under a density. Weights of "
        "observations: the same frame, with Gaussian weights at the observations that sum to 1. × Δt: these times the "
        "span that an observation stands for. Attention with time features: softmax weights by a small network of "
        "value, variable and time.",
        "GRU-D and mTAN (mTAND-Enc) are re-implementations, 64 wide, with 48 steps and reference points, smaller than "
        "the published ones; they see what is static at the end, and learn from batches of 64 stays, others of 128.",
        "p moves: a fifth of the observations of each test stay is deleted as if they had not been made, those that "
        "are looked at most (density, or weight, times the weights of the linear decision), or as many of the others "
        "at random; the mean change of the probability of death. interval: length of the intervals in hours, each by "
        "its importance; of α = 1 four deviations.",
        "s per epoch: one core, with evaluation, other trainings running beside; of logistic regression and boosting "
        "the whole fit.",
    ),
    baseline=_BOOSTING,
    overlap=1 / (FOLDS - 1),
    shown=("B", "A"),
    published={
        "mTAND-Full, published": {"A": {"test.auroc": 0.858}, "B": {}},
        "mTAND-Enc, published": {"A": {"test.auroc": 0.854}, "B": {}},
    },
)

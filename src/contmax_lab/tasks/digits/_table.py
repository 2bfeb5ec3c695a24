"""The demo's table of digits."""

from contmax_lab.tables import Metric, Row, Table, Variant

DIGITS = Table(
    name="digits",
    title="Which digit? Attention over the plane",
    rows=tuple(
        Row(label, f"digits/{recipe}")
        for label, recipe in {
            "Discrete softmax": "discrete-softmax",
            "Discrete sparsemax": "discrete-sparsemax",
            "Continuous softmax": "continuous-softmax",
            "Continuous sparsemax": "continuous-sparsemax",
            "Combined sparsemax": "combined-sparsemax",
        }.items()
    ),
    variants=tuple(Variant(f"seed-{seed}", (f"--seed={seed}",)) for seed in range(3)),
    metrics=(
        Metric("test.accuracy", "accuracy, %", scale=100, digits=1),
        Metric("parameters", "parameters", digits=0, spread=False),
        Metric("timing.seconds_per_epoch", "ms per epoch", scale=1000, digits=0),
        Metric("test.attended", "attended, %", scale=100, digits=1),
    ),
    notes=(
        "Accuracy on the test examples, mean ± standard deviation over the seeds of the training. Attended: mean share "
        "of the image with any attention at all, that is of nonzero weights, of the support of the density, or of "
        "the union of the two. Time is by the clock, with evaluation, other trainings running beside.",
    ),
    needs_data=False,
    about=(
        "1,797 handwritten digits of 8 × 8 pixels: 1,197 to train, 200 for validation, 400 to test, at random. Two "
        "convolutions, one attention over the 64 pixels or over the plane that they tile, a linear classifier; only "
        "the attention differs between the rows. (Alpaydin & Kaynak 1998; data inside the package scikit-learn.)"
    ),
)

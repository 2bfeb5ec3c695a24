"""The demo's table of speakers."""

from contmax_lab.tables import Metric, Row, Table, Variant

VOWELS = Table(
    name="vowels",
    title="Who speaks? Attention over time",
    rows=tuple(
        Row(label, f"vowels/{recipe}")
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
        "of the utterance with any attention at all, that is of nonzero weights, of the support of the density, or of "
        "the union of the two. Time is by the clock, with evaluation, other trainings running beside.",
    ),
    needs_data=False,
    about=(
        "Nine men say the Japanese vowels a and e; which of them speaks? 640 utterances of 7 to 29 frames, each frame "
        "twelve cepstral coefficients, in the published split: 270 to train (54 of them for validation) and 370 to "
        "test. Two convolutions over time, one attention that gathers a single vector, a linear classifier; only the "
        "attention differs between the rows. (Kudo, Toyama & Shimbo 1999; data inside the package aeon.)"
    ),
)

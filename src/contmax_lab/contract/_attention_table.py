"""The demo's table of attentions, for any task that compares them."""

from contmax_lab.contract._table import Metric, Repetition, Row, Table

_KINDS = (
    "Discrete softmax",
    "Discrete sparsemax",
    "Continuous softmax",
    "Continuous sparsemax",
    "Combined sparsemax",
)


def attention_table(task: str, title: str, domain: str, about: str) -> Table:
    """One row for each kind of attention, three seeds, no data needed from outside.

    Args:
        task: its recipe has a variant for each kind, such as ``discrete-softmax``.
        title: of the table.
        domain: what is attended to, in a word: "image".
        about: what the data and the models are.
    """
    return Table(
        name=task,
        title=title,
        rows=tuple(Row(kind, kind.lower().replace(" ", "-")) for kind in _KINDS),
        repetitions=tuple(Repetition(f"seed-{seed}", (f"--seed={seed}",)) for seed in range(3)),
        metrics=(
            Metric("test.accuracy", "accuracy, %", scale=100, digits=1),
            Metric("parameters", "parameters", digits=0, spread=False),
            Metric("timing.seconds_per_epoch", "ms per epoch", scale=1000, digits=0),
            Metric("test.attended", "attended, %", scale=100, digits=1),
        ),
        notes=(
            "Accuracy on the test examples, mean ± standard deviation over the seeds of the training. Attended: mean "
            f"share of the {domain} with any attention at all, that is of nonzero weights, of the support of the "
            "density, or of the union of the two. Time is by the clock, with evaluation, other trainings running "
            "beside.",
        ),
        needs_data=False,
        in_demo=True,
        about=about,
    )

"""The table of where the attentions over reviews look, and whether it matters."""

from contmax_lab.contract import Metric, Row, Table
from contmax_lab.tasks.documents._table import NOTES, SEEDS, START

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
    repetitions=SEEDS[:3],
    metrics=(
        Metric("test.accuracy", "accuracy", scale=100, digits=2),
        Metric("test.attended", "words attended, %", scale=100, digits=1),
        Metric("test.selected", "words selected, %", scale=100, digits=1),
        Metric("test.kept", "kept", scale=100, digits=2),
        Metric("test.removed", "removed", scale=100, digits=2),
        Metric("test.random_kept", "random kept", scale=100, digits=2),
        Metric("test.random_removed", "random removed", scale=100, digits=2),
    ),
    notes=(*NOTES, *_DELETION),
    start=START,
)

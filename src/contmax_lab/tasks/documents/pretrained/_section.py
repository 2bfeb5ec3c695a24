"""The model at work on a few sentences, for a report."""

from collections.abc import Sequence

from contmax_lab.contract import Section
from contmax_lab.tasks.documents.pretrained._reader import PretrainedReader
from contmax_lab.tasks.documents.pretrained._verdict import verdict_figure

EXAMPLES = (
    "I expected little, and the first half hour is slow, but then it turns into one of the most moving and beautifully "
    "acted films I have seen in years. Do not miss it.",
    "The trailer promised a thriller. What we got is a dull, badly written mess with wooden dialogue and no tension "
    "at all. Even the fine cast cannot save it.",
    "Great costumes, a famous director, lovely music, and still I was bored to tears: the plot makes no sense.",
)


def examples_section(reader: PretrainedReader, texts: Sequence[str] = EXAMPLES) -> Section:
    """A table of verdicts, and a picture of each."""
    verdicts = [reader.read(text) for text in texts]
    table = [["text, with what is attended in brackets", "positive"]]
    table += [[verdict.marked(), f"{verdict.probability:.0%}"] for verdict in verdicts]
    accuracy = reader.card["figures"]["test"]["accuracy"]
    lead = (
        f"The model that comes with the package, {accuracy:.1%} right on the test half of IMDB, on sentences of ours."
    )
    figures = [verdict_figure(verdict, f"Sentence {place}") for place, verdict in enumerate(verdicts, start=1)]
    return Section("Positive or negative?", lead, table, figures)

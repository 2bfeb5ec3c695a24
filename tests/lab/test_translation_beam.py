"""Beam search against all translations there are, and the scores of translations against sacreBLEU."""

import itertools
import math

import pytest
import torch

from contmax_lab.contract import Cell, Repetition, Row
from contmax_lab.tasks.translation import _task
from contmax_lab.tasks.translation._beam import beam_search
from contmax_lab.tasks.translation._data import END, PADDING, START

PIECES, LONGEST = 7, 3


class Table:
    """Chances of a piece by the sentence, the piece before and how many there were."""

    def __init__(self, sentences):
        self.chances = 3 * torch.randn(
            sentences, LONGEST + 2, PIECES, PIECES, generator=torch.Generator().manual_seed(1)
        )

    def memory(self, source):
        return self.chances[source[:, 0]]

    def first(self, memory):
        return {"count": torch.zeros(len(memory), 1, dtype=torch.long)}

    def step(self, pieces, state, memory):
        rows = torch.arange(len(memory))[:, None]
        return memory[rows, state["count"], pieces], {"count": state["count"] + 1}


def best_of_all(table, sentence, penalty):
    """Every sequence of pieces, its end behind it."""
    logits = table.chances[sentence]
    scored = {}
    for length in range(LONGEST + 1):
        for words in itertools.product([1, *range(4, PIECES)], repeat=length):
            said = [*words, END]
            chances = sum(
                logits[place, before].log_softmax(-1)[piece]
                for place, (before, piece) in enumerate(zip([START, *words], said, strict=True))
            )
            scored[tuple(said)] = float(chances) / len(said) ** penalty
    return max(scored.items(), key=lambda entry: entry[1])


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_translations(penalty):
    table, sentences = Table(6), torch.arange(6)[:, None]
    found, scores = beam_search(table, sentences, beam=4**LONGEST, max_output=LONGEST, length_penalty=penalty)
    for sentence in range(6):
        said, score = best_of_all(table, sentence, penalty)
        assert found[sentence].tolist() == [*said, *[PADDING] * (LONGEST + 1 - len(said))]
        assert scores[sentence] == pytest.approx(score, rel=1e-5)


def test_a_beam_of_one_takes_the_likeliest_piece_each_time():
    table = Table(6)
    found, _ = beam_search(table, torch.arange(6)[:, None], beam=1, max_output=LONGEST)
    for sentence in range(6):
        said, before = [], START
        while len(said) < LONGEST and before != END:
            logits = table.chances[sentence, len(said), before].clone()
            logits[[PADDING, START]] = -torch.inf
            before = int(logits.argmax())
            said.append(before)
        said += [END] if before != END else []
        assert found[sentence].tolist() == [*said, *[PADDING] * (LONGEST + 1 - len(said))]


class Remembering(Table):
    """Hands on a part of its state as another part, and says what it said two pieces ago."""

    def first(self, memory):
        none = torch.full((len(memory), 1), 4)
        return {"last": none, "before": none}

    def step(self, pieces, state, memory):
        logits = 9.0 * torch.nn.functional.one_hot(state["before"], PIECES)
        # The part that is handed on comes last: by then the state must still be the old one.
        return logits, {"last": (pieces.clamp(min=4) - 3) % 3 + 4, "before": state["last"]}


@pytest.mark.parametrize("most", [1, 2, 6])
def test_a_part_of_the_state_may_become_another_part(most):
    found, _ = beam_search(Remembering(1), torch.zeros(1, 1, dtype=torch.long), beam=1, max_output=most)
    last, before, said, pieces = 4, 4, [], START
    for _ in range(most):
        said.append(before)
        last, before = (max(pieces, 4) - 3) % 3 + 4, last
        pieces = said[-1]
    assert found[0].tolist() == [*said, END]


class Tempting(Table):
    """Ends at once with probability 0.6; what goes on ends after one piece more, and is the likelier per piece."""

    def step(self, pieces, state, memory):
        chances = torch.full((*pieces.shape, PIECES), 1e-9)
        first = (state["count"] == 0).float()
        chances[..., END] = 1 - 0.4 * first
        chances[..., 4] = 0.4 * first + 1e-9
        return chances.log(), {"count": state["count"] + 1}


@pytest.mark.parametrize(("beam", "said"), [(1, [END, PADDING, PADDING, PADDING]), (2, [4, END, PADDING, PADDING])])
def test_a_beam_that_is_full_takes_no_translation_that_ends_later(beam, said):
    found, scores = beam_search(Tempting(1), torch.zeros(1, 1, dtype=torch.long), beam=beam, max_output=LONGEST)
    assert found[0].tolist() == said
    assert float(scores[0]) == pytest.approx(math.log(0.6) if beam == 1 else math.log(0.4) / 2, rel=1e-5)


def test_a_sentence_is_translated_as_if_alone():
    table = Table(6)
    together, scores = beam_search(table, torch.arange(6)[:, None], beam=3, max_output=LONGEST)
    for sentence in range(6):
        alone, score = beam_search(table, torch.tensor([[sentence]]), beam=3, max_output=LONGEST)
        assert torch.equal(alone[0], together[sentence])
        assert torch.equal(score[0], scores[sentence])


# -- scores ------------------------------------------------------------------------------------------------------------

LINES = [
    ("eine katze saß auf der matte", "the cat sat on the mat", "the cat sat on a mat"),
    ("er lief", "he ran.", "he runs."),
    ("ein sehr langer satz mit mehr als zehn wörtern steht hier so da", "a long sentence.", "a long, long sentence."),
]


def test_bleu_by_hand():
    # 5 of 6 words, 3 of 5 pairs, 2 of 4 triples, 1 of 3 of four.
    assert _task.scores(LINES[:1])["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert _task.scores([(s, r, r) for s, r, _ in LINES])["bleu"] == pytest.approx(100)


def test_scores_are_those_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    found = _task.scores(LINES)
    said, references = [line[2].upper() for line in LINES], [[line[1] for line in LINES]]
    assert found["bleu"] == sacrebleu.corpus_bleu(said, references, lowercase=True).score
    assert found["chrf"] == sacrebleu.CHRF(lowercase=True).corpus_score(said, references).score
    assert found["bleu_to_10"] == sacrebleu.corpus_bleu(said[:2], [references[0][:2]], lowercase=True).score
    assert found["bleu_to_15"] == sacrebleu.corpus_bleu(said[2:], [references[0][2:]], lowercase=True).score
    assert set(found) == {"bleu", "chrf", "length", "bleu_to_10", "bleu_to_15"}
    assert "case:lc|eff:no|tok:13a|smooth:exp" in _task.signatures()["bleu"]


def test_a_table_of_translations_comes_back():
    assert _task.read_lines(_task.as_lines(*zip(*LINES, strict=True))) == LINES
    assert _task.read_lines(_task.as_lines(["a"], ["b"], ["c\td\ne"])) == [("a", "b", "c d e")]
    assert _task.scores([]) == {}


def cells(said_by_row):
    """Two seeds of every row, of forty sentences."""
    for label, said in said_by_row.items():
        for seed in range(2):
            lines = [(f"{n}", f"the number {n} stands in this line", said(n, seed)) for n in range(40)]
            text = _task.as_lines(*zip(*lines, strict=True))
            yield Cell(Row(label), Repetition(f"seed-{seed}", ())), {_task.FILE: text}


def test_differences_have_intervals():
    right, wrong = "the number {} stands in this line", "a number {} stands in that line"
    found = _task.differences(
        list(
            cells(
                {
                    "Base": lambda n, seed: (wrong if n % 2 else right).format(n),
                    "Same": lambda n, seed: (wrong if n % 2 else right).format(n),
                    "Better": lambda n, seed: (wrong if n % 8 == seed else right).format(n),
                }
            )
        )
    )
    same, better = found["rows"]["Same"], found["rows"]["Better"]
    assert (same["bleu"], same["low"], same["high"], same["p"]) == (0, 0, 0, 1)
    assert better["low"] > 0
    assert better["low"] < better["bleu"] < better["high"]
    assert better["p"] < 0.01
    assert found["against"] == {"Same": "Base", "Better": "Base"}
    assert found["notes"][0].startswith("Same − base: +0.00 BLEU, 95 % of 1000")
    assert _task.differences(list(cells({"Base": lambda n, seed: right}))) == {}


def test_a_row_is_compared_with_the_one_that_it_names():
    right, wrong = "the number {} stands in this line", "a number {} stands in that line"
    rows = {"Base": wrong.format, "Half: base": right.format, "Half: better": right.format}
    kept = cells({label: lambda n, seed, said=said: said(n) for label, said in rows.items()})
    named = {"Half: better": ("Half: base",), "Half: base": ("Half: base",)}
    given = [(Cell(Row(c.row.label, against=named.get(c.row.label, ())), c.repetition), k) for c, k in kept]
    found = _task.differences(given)
    assert found["against"] == {"Half: better": "Half: base"}
    assert found["rows"]["Half: better"]["bleu"] == 0
    assert found["notes"][0].startswith("Half: better − half: base: +0.00 BLEU")


def test_the_interval_is_about_that_of_sacrebleus_own_paired_bootstrap():
    paired = pytest.importorskip("sacrebleu.significance")
    base = [f"the number {n} stands in {'this' if n % 2 else 'that'} line" for n in range(40)]
    other = [f"the number {n} stands in {'that' if n % 5 == 0 else 'this'} line" for n in range(40)]
    references = [[f"the number {n} stands in this line" for n in range(40)]]
    metric = _task._metrics()[0]
    test = paired.PairedTest([("base", base), ("other", other)], {"BLEU": metric}, references, test_type="bs")
    expected = test()[1]["BLEU"][1]
    found = _task.differences(
        [
            (Cell(Row(label), Repetition("seed-0", ())), {_task.FILE: _task.as_lines(said, references[0], said)})
            for label, said in (("base", base), ("other", other))
        ]
    )["rows"]["other"]
    assert found["bleu"] + metric.corpus_score(base, references).score == pytest.approx(expected.score, abs=1e-9)
    assert found["p"] == pytest.approx(expected.p_value, abs=0.03)

"""Longer than in training: examples, rows, slices that go on, and the table."""

import dataclasses
import json
import math

import pytest
import torch

from contmax_lab.contract import Cell as TableCell
from contmax_lab.errors import Interrupted, LabError
from contmax_lab.registry import experiments
from contmax_lab.tables import run_experiment, summarised
from contmax_lab.tasks.lengths import _slices
from contmax_lab.tasks.lengths.__main__ import main
from contmax_lab.tasks.lengths._examples import PARTS, examples, key_of, symbols
from contmax_lab.tasks.lengths._experiment import LENGTHS, outcomes
from contmax_lab.tasks.lengths._model import Network
from contmax_lab.tasks.lengths._problems import KINDS, MAIN, PROBLEMS, RATES, SEEDS, Cell
from contmax_lab.tasks.lengths._slices import cells_left, chosen_rate, read_cells, steps_of, store, train_slice
from contmax_lab.tasks.lengths._training import Training

CPU = torch.device("cpu")
TINY = {
    name: dataclasses.replace(
        problem, width=8, heads=2, layers=1, inner=8, batch=2, factors=(1, 2), longer=80, shortest=32, longest=64
    )
    for name, problem in PROBLEMS.items()
}

SHORT = dataclasses.replace(TINY["sort"], shortest=4, longest=8, longer=12)


@pytest.fixture(autouse=True)
def few_examples(monkeypatch):
    """Validations and tests of a few examples."""
    monkeypatch.setattr("contmax_lab.tasks.lengths._training._MOST", 4)
    monkeypatch.setattr("contmax_lab.tasks.lengths._training.VALIDATION_EXAMPLES", 2)


def read(problem, tokens):
    """Source, target, and what comes after the end, of a sequence."""
    begin, separator, end, _ = symbols(problem)
    assert tokens[0] == begin
    middle, last = tokens.index(separator), tokens.index(end)
    return tokens[1:middle], tokens[middle + 1 : last], tokens[last + 1 :]


@pytest.mark.parametrize(("name", "answer"), [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)])
def test_targets_are_those_of_python(name, answer):
    problem, key = PROBLEMS[name], key_of(3, "train")
    tokens, is_target = examples(problem, key, torch.arange(64))
    lengths = set()
    for row, chosen in zip(tokens, is_target, strict=True):
        source, target, rest = read(problem, row.tolist())
        assert target == answer(source)
        assert row[chosen].tolist() == [*target, symbols(problem)[2]]
        assert set(rest) <= {symbols(problem)[3]}
        lengths.add(len(source))
    assert lengths <= set(range(32, 65))
    assert len(lengths) > 20
    # Each example is a function of its number, whatever the batch.
    assert torch.equal(examples(problem, key, torch.tensor([5, 9])).tokens, tokens[[5, 9]])
    assert not torch.equal(examples(problem, key_of(4, "train"), torch.arange(64)).tokens, tokens)
    assert len({key_of(0, part) for part in PARTS}) == 3
    fixed = examples(problem, key, torch.arange(3), 100)
    assert fixed.tokens.shape == (3, 203)
    assert (fixed.is_target.sum(-1) == 101).all()


def test_numbers_are_even():
    tokens, is_target = examples(PROBLEMS["copy"], key_of(0, "valid"), torch.arange(2000), 64)
    counts = torch.bincount(tokens[:, 1:65].flatten(), minlength=32).double() / (2000 * 64)
    assert (counts * 32 - 1).abs().max() < 0.08
    pairs = torch.bincount((tokens[:, 1:64] * 32 + tokens[:, 2:65]).flatten(), minlength=1024).double()
    assert (pairs / pairs.mean() - 1).abs().max() < 0.5
    assert is_target.shape == tokens.shape


@pytest.mark.parametrize("length", [None, 33, 64, 1000])
def test_recall_asks_for_the_values_beside_the_words(length):
    problem = PROBLEMS["recall"]
    tokens, is_target = examples(problem, key_of(0, "test"), torch.arange(20), length)
    for row, chosen in zip(tokens.tolist(), is_target, strict=True):
        source, target, _ = read(problem, row)
        assert int(chosen.sum()) == 13
        context, queries = source[:-12], [source[i : i + 3] for i in range(len(source) - 12, len(source), 3)]
        # A pair is k k : v v and a space; a separator between two letters on either side is found by its symbol.
        places = [i for i, symbol in enumerate(context) if symbol == 1]
        words = {tuple(context[i - 2 : i]): context[i + 1 : i + 3] for i in places}
        n = len(context) if length is None else length
        assert len(words) == len(places)
        if length is not None:
            assert len(places) == int(length * 0.8 // 6)
            assert len(context) == length // len(places) * len(places)
        assert all(context[i + 3] == 0 for i in places)
        assert len(context) - 5 * len(places) == context.count(0) <= n
        assert min(x for word, value in words.items() for x in [*word, *value]) >= 3
        for query, value in zip(queries, (target[i : i + 3] for i in range(0, 12, 3)), strict=True):
            assert query[0] == value[0] == 2
            assert words[tuple(query[1:])] == value[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_takes_a_step_and_learns_all_that_it_should(kind):
    training = Training(Cell("sort", kind, 0, 1.0, 4), SHORT, CPU)
    before = {name: p.detach().clone() for name, p in training.network.named_parameters()}
    for _ in range(3):
        training.advance()
    training.validate()
    assert training.curve[-1]["skipped"] == 0
    assert math.isfinite(training.curve[-1]["loss"])
    for name, parameter in training.network.named_parameters():
        if not name.endswith("length_scale"):
            assert not torch.equal(parameter, before[name]), name
    attention = training.network.attentions()[0]
    if KINDS[kind].scale == "logarithm":
        # δ and γ stay, and so does β of the head with positions.
        moved = attention.length_scale != before["layers.0.attention.length_scale"]
        assert moved.tolist() == [[False, False, False], [False, True, False]]
        assert attention.length_scale[0].tolist() == [1, 0, 1]
    if training.rises:
        assert attention.alpha == 1.5
    assert kind != "learned" or attention.alpha.shape == (2,)


def test_alpha_rises_with_the_learning_rate():
    training = Training(Cell("sort", "asentmax", 0, 1.0, 100), SHORT, CPU)
    assert training.warm_up == 6
    alphas, rates = [], []
    for _ in range(8):
        training.advance()
        alphas.append(float(training.network.attentions()[0].alpha))
        rates.append(float(training._optimizer.param_groups[0]["lr"]) / 4e-4)
    assert alphas == pytest.approx([1.05 + 0.45 * min(1, step / 6) for step in range(1, 9)])
    assert rates[:6] == pytest.approx([step / 6 for step in range(1, 7)])
    assert rates[7] == pytest.approx(0.5 * (1 + math.cos(math.pi / 94)))


def test_a_step_that_is_not_finite_changes_nothing_and_is_counted():
    training = Training(Cell("sort", "softmax", 0, 1.0, 20), SHORT, CPU)
    training.advance()
    good = training.network.logits.detach().clone()
    training.network.logits.register_hook(lambda gradient: gradient * torch.nan)
    training.advance()
    assert torch.equal(training.network.logits, good)
    training.validate()
    assert training.curve[-1]["skipped"] == 1


def test_softmax_attends_a_long_sequence_in_blocks(monkeypatch):
    network = Network(TINY["copy"], KINDS["ssmax"])
    tokens = torch.randint(0, 32, (2, 50))
    whole = network(tokens)
    monkeypatch.setattr("contmax_lab.tasks.lengths._model._MOST_KEYS", 20)
    monkeypatch.setattr("contmax_lab.tasks.lengths._model._BLOCK", 16)
    assert torch.allclose(network(tokens), whole, atol=1e-5)


def test_asentmax_learns_to_copy_and_exact_matches_are_those_of_greedy_decoding():
    problem = dataclasses.replace(
        TINY["copy"], layers=2, width=32, heads=4, inner=32, words=3, shortest=1, longest=3, batch=32, rate=1e-2
    )
    training = Training(Cell("copy", "asentmax", 0, 1.0, 100), problem, CPU)
    for _ in range(100):
        training.advance()
    shares = []
    for length in (3, 4):
        matches, _ = training.measured("test", length, 40)
        shares.append(float(matches.float().mean()))
        tokens, _ = examples(problem, key_of(0, "test"), torch.arange(40), length)
        text = tokens[:, : length + 2]
        for _ in range(length + 1):
            text = torch.cat([text, training.network(text).argmax(-1)[:, -1:]], 1)
        assert torch.equal((text == tokens).all(-1), matches)
    assert shares[0] > 0.8
    assert shares[1] < 1


def found(cell, score=0.5, step=10):
    """Results of a cell that nobody has trained."""
    problem = PROBLEMS[cell.problem]
    tests = {f"{factor:g}x": {"exact": score / factor, "loss": 0.1, "examples": 100} for factor in problem.factors}
    chosen = {"step": step, "tests": tests}
    curve = [{"step": step, "loss": 0.1, "skipped": 0, "short": score, "short_loss": 1 - score}]
    origin = {"commit": None, "dirty": None, "date": "2026", "machine": {"cpu": "c", "gpus": []}, "versions": {}}
    return {
        **cell._asdict(), "learning_rate": cell.rate * problem.rate, "skipped": 0, "seconds": 1.0, "test_seconds": 1.0,
        "steps_per_second": 9.0, "side_by_side": 4, "device": None, "chosen": {"short": chosen, "longer": chosen},
        "curve": curve, "provenance": origin,
    }  # fmt: skip


def test_rates_are_tried_before_the_other_seeds_and_main_rows_before_the_others():
    steps = steps_of("sort", 20)
    first = next(cells_left({}, ["sort"], 20))
    assert first == [Cell("sort", kind, 0, rate, steps) for rate in RATES for kind in MAIN]
    done = {cell: found(cell, 0.9 if (cell.kind == "softmax") == (cell.rate == 1) else 0.2) for cell in first}
    assert [chosen_rate(done, "sort", kind, steps) for kind in MAIN] == [1.0, 2.5, 2.5, 2.5]
    second = next(cells_left(done, ["sort"], 20))
    assert second == [Cell("sort", k, s, 1.0 if k == "softmax" else 2.5, steps) for s in SEEDS[1:] for k in MAIN]
    done |= {cell: found(cell) for cell in second}
    third = next(cells_left(done, ["sort", "copy"], 20))
    assert {(cell.problem, cell.kind in MAIN) for cell in third} == {("copy", True)}
    assert {cell.kind for cell in next(cells_left(done, ["sort"], 20))} == {"learned", "annealed"}


def test_a_slice_goes_on_where_the_last_one_ended(tmp_path, monkeypatch):
    options = {"share": PROBLEMS["sort"].steps // 2, "side_by_side": 3, "problems": ["sort"], "device": CPU}
    trained = []

    def counted(group, *rest):
        if len(trained) >= 2:
            raise Interrupted("time is up")
        trained.append(group)
        return original(group, *rest)

    original = _slices._trained
    monkeypatch.setattr(_slices, "_trained", counted)
    with pytest.raises(Interrupted):
        train_slice(tmp_path, sizes={"sort": SHORT}, **options)
    before = (tmp_path / _slices.FILE).read_text()
    assert len(before.splitlines()) == 6
    del trained[:]
    with pytest.raises(Interrupted):
        train_slice(tmp_path, sizes={"sort": SHORT}, **options)
    after = (tmp_path / _slices.FILE).read_text()
    assert after.startswith(before)
    cells = [Cell(*(json.loads(line)[field] for field in Cell._fields)) for line in after.splitlines()]
    assert len(set(cells)) == len(cells) == 12
    results = read_cells(tmp_path)[cells[0]]
    assert results["steps"] == 2
    assert [point["step"] for point in results["curve"]] == [1, 2]
    assert set(results["chosen"]["short"]["tests"]) == {"1x", "2x"}
    # What a like group took says that another one does not fit.
    with pytest.raises(Interrupted, match="time is up"):
        train_slice(tmp_path, sizes={"sort": SHORT}, budget_minutes=1e-9, **options)
    for broken in ("{}\n", after[:70]):
        (tmp_path / _slices.FILE).write_text(after + broken)
        with pytest.raises(LabError, match=r"cells.jsonl:13 is not a line"):
            read_cells(tmp_path)
    (tmp_path / _slices.FILE).write_text(after.removesuffix("\n"))
    store(tmp_path, {**results, "seed": 99})
    assert len(read_cells(tmp_path)) == 13


def test_options_that_train_nothing_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--share", "0"])
    assert "--share has to be 1 or more; got 0" in capsys.readouterr().err


def test_the_table_of_what_is_done(tmp_path, monkeypatch):
    experiment = experiments()["lengths"]
    assert outcomes(tmp_path) == []
    for problem in PROBLEMS:
        for kind in MAIN:
            for seed in SEEDS:
                for rate in RATES if seed == 0 else RATES[:1]:
                    cell = Cell(problem, kind, seed, rate, 7)
                    store(tmp_path, found(cell, 0.8 if kind == "asentmax" and rate == 1 else 0.3 / rate))
    stopped = dataclasses.replace(experiment, train=lambda runs, minutes: None)
    output = tmp_path / "results" / "lengths.json"
    text = run_experiment(stopped, tmp_path, output)
    assert "| ASEntmax " in text
    assert "| ASEntmax, published, quoted " in text
    content = json.loads(output.read_text())
    assert not content["complete"]  # two rows are missing
    assert len(content["cells"]) == 2 * 4 * 3 * 4
    differences = {row["label"]: row for row in content["differences"]["rows"]}
    sort = differences["ASEntmax"]["groups"]["sort"]["test.x4"]
    assert (sort["mean"], sort["count"]) == (pytest.approx(0.5 / 4), 3)
    assert output.with_suffix(".png").stat().st_size > 10_000
    again = summarised(LENGTHS, [(TableCell(*key), results) for key, results in outcomes_by_name(content)])
    assert again["text"] == content["text"]


def outcomes_by_name(content):
    """Row and repetition of each cell of a file of results, with its results."""
    rows = {row.label: row for row in LENGTHS.rows}
    repetitions = {repetition.name: repetition for repetition in LENGTHS.repetitions}
    return [((rows[c["row"]], repetitions[c["variant"]]), c["results"]) for c in content["cells"]]

"""The campaign for a GPU, tried without one: its watchdog, its counts, its references, and every target in small."""

import json
import signal
import sys
import time

import pytest
import torch
from fuzz.gpu import __main__ as campaign_main
from fuzz.gpu import _child, hunts, linear_loss, losses, maps
from fuzz.gpu._campaign import Campaign
from fuzz.gpu._case import F32, Case, WrongResultError
from fuzz.gpu._compare import require_probabilities, require_sums
from fuzz.gpu._references import alpha_gradient64, distance_from_edge, entmax64, loss64, pulled_back64
from fuzz.gpu._targets import SHARES, function_of
from fuzz.gpu._watchdog import Patience, Worker

import contmax
from contmax.losses import entmax_loss

# Speaks as a child does, without torch: what becomes of a case is the name of its target.
CHILD = """
import json, sys, time
print("READY", flush=True)
for line in sys.stdin:
    target, seed = line.split()
    print("WITH\\tseed", seed, flush=True)
    counts = {"long": 3, "short": 50, "long_compared": 1, "short_compared": 2}
    if target == "sleeps" and seed == "7":
        time.sleep(1000)
    if target == "compiles":
        print("COMPILES\\tone", flush=True)
        time.sleep(1.0)
        print("COMPILED", flush=True)
    if target == "dies":
        print("nothing left", file=sys.stderr, flush=True)
        sys.exit(5)
    state = "failed" if target in ("fails", "is_lost") else "ok"
    last = "\\tLAST" if target == "is_lost" else ""
    print("DONE\\t" + json.dumps({"state": state, "text": "", "seconds": 0.1, "counts": counts}) + last, flush=True)
    if last:
        sys.exit(3)
"""
COMMAND = [sys.executable, "-S", "-c", CHILD]
PATIENCE = Patience(start=30.0, case=0.6, compilation=30.0)


def campaign(*targets, command=COMMAND, seconds=30.0, **options):
    """A campaign that is over."""
    settings = {"side": 1, "seed": 5, "patience": PATIENCE, "cases": 4} | options
    found = Campaign(dict.fromkeys(targets, 1.0), command, **settings)
    found.start(seconds)
    found.wait(seconds + 10)
    found.stop()
    return found


# -- the watchdog ------------------------------------------------------------------------------------------------------


def test_a_case_that_never_ends_is_named_and_the_next_one_runs():
    said = []
    done = campaign("sleeps", report=said.append)
    assert done.tallies["sleeps"].cases == {"ok": 3, "hung": 1}
    (hung,) = done.findings
    assert (hung.target, hung.seed, hung.circumstances) == ("sleeps", 7, "seed 7")
    assert "silent for 0.6 s" in hung.text
    assert said == [hung]


def test_compilation_is_given_more_time():
    assert campaign("compiles", cases=1).tallies["compiles"].cases == {"ok": 1}


def test_a_process_that_dies_is_a_finding_with_its_last_words():
    done = campaign("dies", "works", cases=2)
    assert done.tallies["dies"].cases == {"died": 2}
    assert done.tallies["works"].cases == {"ok": 2}
    assert "exit code 5: nothing left" in done.findings[0].text


def test_a_process_that_lost_its_device_is_replaced_and_the_next_case_is_not_blamed():
    done = campaign("is_lost", "works", cases=3)
    assert done.tallies["is_lost"].cases == {"failed": 3}
    assert done.tallies["works"].cases == {"ok": 3}


def test_processes_that_cannot_start_end_the_campaign():
    began = time.monotonic()
    done = campaign("works", command=[sys.executable, "-S", "-c", "raise SystemExit('no device')"], cases=50)
    assert done.tallies["works"].cases == {"died": 2}
    assert "no device" in done.findings[0].text
    assert time.monotonic() - began < 20


def test_rows_and_cases_are_counted():
    done = campaign("works", "sleeps", "fails", side=3, cases=6)
    results = done.results()
    ended = {"works": 6, "sleeps": 5, "fails": 6}
    assert results["totals"]["cases"] == {"failed": 6, "hung": 1, "ok": 11}
    assert {name: entry["short"] for name, entry in results["targets"].items()} == {
        name: 50 * count for name, count in ended.items()
    }
    assert results["totals"]["long_compared"] == 17
    assert [tally.next_seed for tally in done.tallies.values()] == [11, 11, 11]


def test_time_is_shared_and_ends():
    began = time.monotonic()
    shares = {"works": 1.0, "also": 3.0}
    done = Campaign(shares, COMMAND, side=2, seed=0, patience=PATIENCE)
    done.start(1.5)
    done.wait(20)
    done.stop()
    assert time.monotonic() - began < 10
    few, many = (done.tallies[name].cases["ok"] for name in shares)
    assert 2 * few < many < 4 * few


def test_a_campaign_that_is_stopped_finds_nothing():
    done = Campaign({"sleeps": 1.0}, COMMAND, side=1, seed=7, patience=Patience(case=100.0))
    done.start(60.0)
    time.sleep(1.0)
    done.stop()
    done.wait(10)
    assert done.findings == []


def test_a_worker_waits_no_longer_than_the_campaign():
    worker = Worker(COMMAND, Patience(case=100.0))
    began = time.monotonic()
    assert worker.run("sleeps", 7, began + 1.0).state == "unfinished"
    assert time.monotonic() - began < 5


# -- the command -------------------------------------------------------------------------------------------------------


def test_findings_are_printed_written_and_make_the_exit_code(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign_main, "SHARES", {"works": 1.0, "fails": 1.0})
    monkeypatch.setattr(campaign_main, "child_command", lambda device, side: COMMAND)
    output = tmp_path / "deep" / "fuzz-gpu.json"
    options = ["--cases", "2", "--seed", "3", "--side", "2", "--output", str(output)]
    assert campaign_main.main(options) == 1
    printed = capsys.readouterr().out
    assert "FAILED fails (seed 3)" in printed
    assert "python -m fuzz.gpu --only fails --seed 3 --cases 1 --side 1" in printed
    assert "2 failed" in printed.splitlines()[-1]
    written = json.loads(output.read_text(encoding="utf-8"))
    assert written["totals"] | {"seconds": 0} == {
        "cases": {"failed": 2, "ok": 2}, "long": 12, "long_compared": 4, "short": 200, "short_compared": 8, "seconds": 0
    }  # fmt: skip
    assert {"command", "commit", "machine", "versions", "targets", "findings"} <= set(written)
    assert campaign_main.main([*options, "--only", "works"]) == 0
    with pytest.raises(SystemExit):
        campaign_main.main(["--only", "nowhere"])


def test_a_campaign_that_is_interrupted_writes_what_it_has(tmp_path, capsys, monkeypatch):
    def interrupt(packages):
        time.sleep(1.0)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(campaign_main, "SHARES", {"works": 1.0, "sleeps": 1.0})
    monkeypatch.setattr(campaign_main, "child_command", lambda device, side: COMMAND)
    monkeypatch.setattr(campaign_main, "provenance", interrupt)
    output = tmp_path / "fuzz-gpu.json"
    options = ["--seed", "7", "--cases", "3", "--side", "1", "--output", str(output)]
    began, before = time.monotonic(), signal.getsignal(signal.SIGTERM)
    assert campaign_main.main(options) == 0
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGTERM) is before
    assert "stopped" in capsys.readouterr().out
    assert json.loads(output.read_text(encoding="utf-8"))["targets"]["works"]["cases"]["ok"] > 0


def test_a_real_process_runs_a_case(tmp_path, monkeypatch):
    monkeypatch.setenv("CONTMAX_BACKEND", "torch")  # starts sooner without a compiler
    output = tmp_path / "fuzz.json"
    options = ["--device", "cpu", "--only", "losses.infinite_targets", "--cases", "2", "--side", "1", "--seed", "1"]
    assert campaign_main.main([*options, "--minutes", "2", "--output", str(output)]) == 0
    entry = json.loads(output.read_text(encoding="utf-8"))["targets"]["losses.infinite_targets"]
    assert entry["cases"] == {"ok": 2}
    assert entry["short"] == entry["short_compared"] > 0


@pytest.mark.parametrize(
    ("error", "state", "goes_on"),
    [
        (WrongResultError("p is wrong"), "failed", True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"), "skipped", True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), "skipped", True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "failed", False),
        (ZeroDivisionError("division\nby zero"), "failed", True),
    ],
)
def test_what_becomes_of_an_error(error, state, goes_on, monkeypatch):
    def fail(case):
        raise error

    said = []
    monkeypatch.setattr(_child, "function_of", lambda target: fail)
    assert _child.run("any.target", 0, "cpu", lambda *words: said.append(words)) == goes_on
    result = json.loads(said[-1][1])
    assert (said[-1][2:] == ("LAST",)) != goes_on
    assert result["state"] == state
    assert "\n" not in result["text"]
    assert str(error).split("\n")[0] in result["text"]


# -- references --------------------------------------------------------------------------------------------------------


def hostile(rows=40, columns=30):
    x = 3 * torch.randn(rows, columns, dtype=torch.float64)
    x[3, 5], x[4], x[5], x[6, 1:], x[7] = torch.nan, -torch.inf, 1.7e308, -torch.inf, 2.0
    x[8, 2] = torch.inf
    return x


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.1, 1.5, 2.0, 2.5, 3.0])
def test_references_agree_with_the_library_in_float64(alpha):
    x = hostile()
    assert torch.allclose(entmax64(x, alpha), contmax.entmax(x, alpha), rtol=0, atol=1e-12, equal_nan=True)
    mask = torch.rand(x.shape) > 0.4
    masked = contmax.entmax(x, alpha, mask=mask)
    # In a row with NaN masked places are 0 for α = 1 alone: what stands there is not asked.
    found, exact = (torch.where(mask, p, 0.0) for p in (masked, entmax64(x, alpha, mask)))
    assert torch.allclose(exact, found, rtol=0, atol=1e-12, equal_nan=True)
    assert (masked[9:][~mask[9:]] == 0).all()
    x = x[9:].requires_grad_()
    index = torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)
    p = contmax.entmax(x, index)
    g = torch.randn_like(p)
    grad, grad_alpha = torch.autograd.grad(p, (x, index), g)
    torch.testing.assert_close(pulled_back64(p.detach(), g, alpha), grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(alpha_gradient64(p.detach(), g, alpha)[0], grad_alpha, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("alpha", [1.0, 1.0001, 1.5, 2.0, 3.0])
def test_reference_losses_agree_with_the_library_in_float64(alpha):
    z = hostile()[9:].requires_grad_()
    ids = torch.arange(len(z)) % z.shape[1]
    hard = torch.nn.functional.one_hot(ids, z.shape[1]).double()
    soft = torch.softmax(torch.randn_like(z), -1)
    for target, q in ((ids, hard), (soft, soft)):
        loss = entmax_loss(z, target, alpha, reduction="none", label_smoothing=0.1)
        (grad,) = torch.autograd.grad(loss.sum(), z)
        want, residual, _ = loss64(z, q, alpha, smoothing=0.1)
        torch.testing.assert_close(loss.detach(), want, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(grad, residual, rtol=0, atol=1e-12)


def test_an_alpha_for_each_row_is_as_if_rows_were_alone():
    x, alpha = torch.randn(5, 20, dtype=torch.float64), torch.tensor([1.0, 1.2, 1.5, 2.0, 3.0])[:, None]
    together = entmax64(x, alpha)
    for row in range(5):
        torch.testing.assert_close(together[row], entmax64(x[row : row + 1], float(alpha[row]))[0])


def test_the_distance_from_another_support():
    x = torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.0, -2.0], [1.0, 0.25, -2.0]], dtype=torch.float64)
    # At α = 2: p = (3/4, 1/4, 0), threshold 1/4; then a score exactly at the threshold 0; then p = (7/8, 1/8, 0).
    found = distance_from_edge(x, entmax64(x, 2.0), 2.0)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.0, 0.125], dtype=torch.float64), rtol=0, atol=1e-12)


def test_comparisons_notice_small_and_flat_faults():
    # Every probability is smaller than what float32 may be off by where probabilities are near one.
    x = torch.zeros(1, 4 * 10**5)
    p = torch.full(x.shape, 1 / x.shape[1], dtype=torch.float64)
    require_probabilities(p.float(), p, 1.5)
    require_sums(p.float(), x[:, 0])
    for wrong in (p * 0, p.roll(1, 1) * torch.tensor([1.5, 0.5]).repeat(2 * 10**5)):
        with pytest.raises(WrongResultError, match=r"^p: "):
            require_probabilities(wrong.float(), p, 1.5)
    with pytest.raises(WrongResultError, match="Σ p"):
        require_sums(0.99 * p.float(), x[:, 0])


# -- targets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", SHARES)
def test_every_target_holds_for_a_small_case(target):
    said = []
    case = Case(target, 1, "cpu", said.append)
    function_of(target)(case)
    assert said
    assert case.counts.short + case.counts.long > 0
    assert target.startswith("launches") or case.counts.short_compared > 0


def test_a_case_is_the_same_every_time():
    first, second, other = (Case("maps.fixed", seed, "cpu") for seed in (3, 3, 4))
    assert torch.equal(first.normal(20), second.normal(20))
    assert not torch.equal(first.normal(20), other.normal(20))
    assert first.random.random() == second.random.random()


def test_more_than_one_row_in_a_hundred_is_compared():
    case = Case("any", 0, "cpu")
    for rows, columns in ((10**6, 20), (5000, 128256), (3, 10), (1, 10**6)):
        places = case.sample(rows, columns, [0])
        assert len(places) > rows / 100
        assert {0, rows - 1} <= set(places.tolist())
        assert int(places.max()) < rows


def test_rows_are_counted_by_their_length():
    case = Case("any", 0, "cpu")
    case.tried(7, 32000)
    case.tried(5, 31999)
    case.compared(2, 32000)
    assert (case.counts.long, case.counts.short, case.counts.long_compared) == (7, 5, 2)


FAULTS = {
    "maps.fixed": (contmax, "entmax", lambda p: 1.01 * p),
    "maps.per_row": (contmax, "entmax", lambda p: p.roll(1, -1)),
    "maps.masked": (contmax, "entmax", lambda p: p + 1e-3),
    "maps.huge": (contmax, "entmax", lambda p: p * p),
    "losses.hard": (losses, "entmax_loss", lambda loss: 1.1 * loss),
    "losses.smoothed": (losses, "entmax_loss", lambda loss: loss + 0.1),
    "losses.masked": (losses, "entmax_loss", lambda loss: loss - 0.1),
    "losses.soft": (losses, "entmax_loss", lambda loss: 1.1 * loss + 0.01),
    "losses.any_alpha": (losses, "entmax_loss", lambda loss: loss * loss),
    "losses.infinite_targets": (losses, "entmax_loss", lambda loss: loss.clamp(max=1e30)),
    "linear_loss.linear": (linear_loss, "linear_entmax_loss", lambda loss: 1.2 * loss + 0.1),
    "attention.short": (contmax, "entmax_attention", lambda output: 1.1 * output),
    "attention.sampled": (contmax, "entmax_attention", lambda output: output + 0.1),
    "continuous.line": (contmax, "expectation", lambda r: 1.001 * r),
    "continuous.plane": (contmax, "expectation", lambda r: r + 1e-3),
    "hunts.long_maps": (contmax, "entmax", lambda p: 0.9 * p),
    "hunts.short_hard": (hunts, "entmax_loss", lambda loss: 1.1 * loss + 0.01),
    "hunts.long_soft": (hunts, "entmax_loss", lambda loss: -loss - 0.01),
}


def several_cases(target):
    for seed in range(4):
        function_of(target)(Case(target, seed, "cpu"))


@pytest.mark.parametrize("target", FAULTS)
def test_targets_notice_faults(target, monkeypatch):
    module, name, fault = FAULTS[target]
    right = getattr(module, name)

    def wrong(*arguments, **options):
        result = right(*arguments, **options)
        # The reference of expectations is the library in float64.
        return result if result.dtype == torch.float64 else fault(result)

    monkeypatch.setattr(module, name, wrong)
    if target == "maps.fixed":
        monkeypatch.setattr(maps, "drawn_alpha", lambda case: 1.5)
    with pytest.raises(WrongResultError):
        several_cases(target)


def test_a_wrong_gradient_is_noticed(monkeypatch):
    entmax = contmax.entmax

    def wrong(x, *arguments, **options):
        # The same values with a gradient that is 3 % too large.
        return entmax(x.detach() + 1.03 * (x - x.detach()), *arguments, **options)

    monkeypatch.setattr(contmax, "entmax", wrong)
    monkeypatch.setattr(maps, "drawn_alpha", lambda case: 1.5)
    monkeypatch.setattr(maps, "drawn_dtype", lambda case: F32)
    with pytest.raises(WrongResultError, match="gradient"):
        several_cases("maps.fixed")

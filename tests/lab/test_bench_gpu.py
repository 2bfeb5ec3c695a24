"""The benchmarks for the GPU, tried on the CPU by a clock of our own: what they check, count and say."""

import json
import math
import types

import pytest
import torch

import contmax
from contmax_lab import bench
from contmax_lab.bench import __main__ as command
from contmax_lab.bench import _entmax_attention
from contmax_lab.bench._attention import attention_figures, draw_growth, growth_figures
from contmax_lab.bench._decode import decode_figures
from contmax_lab.bench._entmax_attention import entmax_attention_figures, peer_figures
from contmax_lab.bench._figure import eager_table
from contmax_lab.bench._gpu_maps import _least_bytes, losses_figures, maps_figures
from contmax_lab.bench._measuring import Clock, percentiles


class StandIn:
    """Every call is run once, and takes as long as we say: by its place among the contenders."""

    device = "cpu"

    def __init__(self, device=(2.0, 1.0), wall=(6.0, 2.0), peak=1000):
        self._device, self._wall, self._peak = device, wall, peak

    def device_times(self, calls, effort):
        return self._times(calls, self._device)

    def wall_times(self, calls, effort):
        return self._times(calls, self._wall)

    def peak_memory(self, call):
        return self._peak, call()

    def bandwidth(self):
        return 500.0

    def _times(self, calls, seconds):
        for call in calls.values():
            call()
        return {name: [taken] * 3 for name, taken in zip(calls, seconds, strict=False)}


def contest(function=lambda x: contmax.entmax(x, 1.5), **options):
    scores = torch.randn(40, 30, requires_grad=True)
    cotangent = torch.randn(40, 30)
    return bench.Contest(
        table="device time",
        row="small",
        column="ours",
        ours=bench.Work(function, (scores,), cotangent),
        unit=bench.Work(lambda x: torch.softmax(x, -1), (scores,), cotangent),
        moved_bytes=100,
        **options,
    )


def figures_of(contest, clock=None):
    return list(contest.figures(clock or StandIn(), bench.QUICK))


def test_a_contest_gives_ratio_share_of_bandwidth_and_wall_clock():
    ratio, share, eager = figures_of(contest(at_most=1.5, eager_at_most=4.0))
    assert (ratio.table, ratio.value, ratio.reached) == ("device time", 2.0, False)
    assert (share.table, share.value) == (bench.share_table("device time"), 100 / 2.0 / 500.0)
    assert (eager.table, eager.value, eager.reached) == (eager_table("device time"), 3.0, True)
    assert ratio.details["seconds"]["contmax"] == {"median": 2.0, "p20": 2.0, "p80": 2.0}
    assert max(ratio.details["errors"]) <= ratio.details["allowed_error"]


def wrong_value(x):
    return contmax.entmax(x, 1.5) * (1 + 1e-4 * (x.dtype == torch.float32))


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        return p.clone()

    @staticmethod
    def backward(ctx, g):
        return g * (1 + 1e-4 * (g.dtype == torch.float32))


@pytest.mark.parametrize("function", [wrong_value, lambda x: WrongGradient.apply(contmax.entmax(x, 1.5))])
def test_what_is_wrong_has_no_time(function):
    (figure,) = figures_of(contest(function, at_most=1.5, eager_at_most=4.0))
    assert math.isnan(figure.value)
    assert figure.reached is False
    assert "relative to float64" in figure.details["failed"]


def test_what_does_not_run_is_noted_and_the_next_row_goes_on():
    def broken(x):
        raise RuntimeError("out of something\nand a long story")

    (figure,) = figures_of(contest(broken, at_most=1.5))
    assert figure.details["failed"] == "RuntimeError: out of something"


def test_what_waits_for_the_device_has_no_time():
    class Refuses(StandIn):
        def device_times(self, calls, effort):
            raise RuntimeError("operation not permitted when stream is capturing")

    (figure,) = figures_of(contest(at_most=1.5), Refuses())
    assert math.isnan(figure.value)
    assert "capturing" in figure.details["failed"]


def test_a_peer_that_fails_is_left_out():
    def fails():
        raise AttributeError("no such function")

    figures = contest(peers={"first": fails, "second": lambda: None}).peer_figures(StandIn(), bench.QUICK)
    by_row = {figure.row: figure for figure in figures if figure.table == "device time"}
    assert by_row["small by first"].value is None
    assert by_row["small by first"].details == {"refused": "AttributeError: no such function"}
    assert by_row["small by second"].value == 2.0


def test_only_the_last_examples_are_checked_and_shared_inputs_are_whole():
    x, weight = torch.randn(100, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    work = bench.Work(lambda x, w: x @ w.mT, (x, weight), torch.randn(100, 7), shared=(1,))
    part = work.part(torch.float64)
    assert part.inputs[0].shape == (32, 5)
    assert part.inputs[1].shape == (7, 5)
    torch.testing.assert_close(part()[0].float(), work()[0][-32:])
    assert max(work.errors()) < 1e-5


def test_percentiles():
    assert percentiles([3.0, 1.0, 2.0]) == pytest.approx({"median": 2.0, "p20": 1.4, "p80": 2.6})


def test_bandwidth_is_that_of_the_memory(monkeypatch):
    testing = pytest.importorskip("triton.testing")
    monkeypatch.setattr(testing, "get_dram_gbps", lambda: 4917.0)  # of an H200
    assert Clock.bandwidth(None) == 4.917e12


def test_maps_need_not_read_gradients_of_zeros():
    p = torch.zeros(3, 20)
    p[0, 7], p[0, 8], p[1, 19] = 0.5, 0.5, 1.0  # of 8 float32 side by side, two in the first row, one in the second
    assert _least_bytes(p) == 4 * 60 * 4 + 3 * 32


def small_run(figures):
    return list(figures(bench.QUICK, StandIn()))


def test_maps():
    figures = small_run(maps_figures)
    timed = [f for f in figures if f.at_most is not None]
    assert {f.column for f in timed} == {
        "sparsemax", "entmax α=1.5", "entmax α=4/3", "entmax α=1.3", "entmax, learned α",
        "entmax α=1.5, one call", "entmax α=1.5, eight calls in a row",
    }  # fmt: skip
    assert all(f.value in (2.0, 3.0) for f in timed), [f.details for f in timed if f.value not in (2.0, 3.0)]
    assert any("wall clock of eager calls" in f.table for f in figures)


def test_losses_count_memory_beyond_the_gradient():
    figures = small_run(losses_figures)
    assert all(f.value == 2.0 for f in figures if f.table.startswith("forward + backward") and f.at_most)
    memory = [f for f in figures if f.table.startswith("peak memory")]
    size = {"float32": 4, "bfloat16": 2}
    for figure in memory:
        logits = 64 * 1000 * size[figure.row.split()[-1]]
        assert figure.value == pytest.approx((1000 - logits) / logits)


def test_attention():
    figures = small_run(attention_figures)
    timed = [f for f in figures if f.at_most is not None]
    assert len({f.table for f in timed}) == 6
    assert all(f.value in (2.0, 3.0) for f in timed), [f.details for f in timed if f.value not in (2.0, 3.0)]


def test_growth_and_its_picture(tmp_path):
    figures = small_run(growth_figures)
    rows = {f.row for f in figures if f.table.startswith("one of many")}
    assert len(rows) == 2
    assert all(f.value is not None and math.isfinite(f.value) for f in figures), [f.details for f in figures]
    pytest.importorskip("matplotlib")
    results = {"figures": [f.as_json() for f in figures], "machine": {"gpus": ["a GPU"], "cpu": "a processor"}}
    draw_growth(json.loads(json.dumps(results)), tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_long_flash_attention_is_stopped():
    class Slow(StandIn):
        def device_times(self, calls, effort):
            return {name: [3.0] for name in calls}

    figures = list(growth_figures(bench.QUICK, Slow()))
    assert sum(f.row == "scaled_dot_product_attention" for f in figures) == 1


def test_the_command_stores_what_a_gpu_measured_apart(monkeypatch, capsys, tmp_path):
    suite = bench.Suite(
        "tiny", lambda effort: iter([bench.Figure("t", "r", "c", math.nan, details={"failed": "late"})])
    )
    monkeypatch.setattr(command, "GPU_SUITES", [suite])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    command.main(["--device", "cuda", "--output", str(tmp_path)])
    stored = json.loads((tmp_path / "gpu-tiny.json").read_text())
    assert stored["command"] == "python -m contmax_lab.bench tiny --device cuda"
    assert "CUDA graph" in stored["method"][0]
    assert "r, c: late" in capsys.readouterr().out


def test_without_a_gpu_the_command_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        command.main(["maps", "--device", "cuda"])
    assert "torch finds none" in capsys.readouterr().err


def test_entmax_attention_is_measured_beside_flash_attention():
    clock = StandIn(device=(2.0, 4.0, 1.0, 1.0, 1.0), peak=5 * 10**6)
    figures = list(entmax_attention_figures(bench.QUICK, clock))
    both = [f for f in figures if "forward + backward: device time / flash" in f.table]
    assert [f.value for f in both] == [0.5, 0.5, 0.5]
    assert all(f.details["error"] <= f.details["allowed_error"] for f in both)
    assert [f.column for f in both] == ["random", "clustered", "flat"]
    alphas = {f.column: f.value for f in figures if "that of α = 1.5" in f.table}
    assert alphas == {"α = 1.25": 2.0, "α = 4/3": 0.5, "α = 2": 0.5, "α per head, learned": 0.5}
    (choice,) = [f for f in figures if "torch chooses" in f.table]
    assert choice.value == 0.25
    assert choice.details["kernels"] in ("FLASH_ATTENTION", "MATH")
    assert [f.value for f in figures if "memory" in f.table] == [5.0]
    assert [f.value for f in figures if "eager" in f.table] == [3.0, 3.0, 3.0]


def attention_by(share=1.0):
    """Stands in for adasplash: a share of what is right."""

    def attend(query, key, value, is_causal=True):
        return share * contmax.entmax_attention(query, key, value, is_causal=is_causal)

    return attend


def measured_beside(monkeypatch, library):
    """The figures of the peers' suite, as (row, column) → figure, where `library` is what imports as adasplash."""
    monkeypatch.setattr(_entmax_attention, "peer", lambda name: library)
    figures = peer_figures(bench.QUICK, StandIn(wall=(2.0, 1.0, 6.0, 8.0)))
    return {(figure.row.rpartition(", ")[2], figure.column): figure for figure in figures}


def test_both_versions_of_adasplash_are_measured_beside_ours(monkeypatch):
    library = types.SimpleNamespace(adasplash2=attention_by(), adasplash_v1=attention_by())
    found = measured_beside(monkeypatch, library)
    expected = {"contmax": 0.5, "adasplash v2": 3.0, "adasplash v1": 4.0}
    assert {place: figure.value for place, figure in found.items()} == {
        (kind, name): value for kind in ("random", "clustered") for name, value in expected.items()
    }
    details = found["random", "adasplash v2"].details
    assert details["differences"] == {"output": 0.0, "query": 0.0, "key": 0.0, "value": 0.0}
    assert details["seconds"]["adasplash v2"]["median"] == 6.0
    assert not any("adasplash" in figure.column for figure in entmax_attention_figures(bench.QUICK, StandIn([1.0] * 5)))


def test_a_peer_that_fails_or_computes_something_else_has_no_time(monkeypatch):
    def fails(*inputs):
        raise RuntimeError("no such head size")

    found = measured_beside(monkeypatch, types.SimpleNamespace(adasplash2=fails, adasplash_v1=attention_by(share=1.1)))
    second, first = found["random", "adasplash v2"], found["random", "adasplash v1"]
    assert (second.value, second.details) == (None, {"refused": "no such head size"})
    assert first.value is None
    assert "differs from that of entmax_attention by 0.1" in first.details["refused"]
    assert found["random", "contmax"].value == 0.5


def test_peers_that_are_not_installed_have_no_time(monkeypatch):
    found = measured_beside(monkeypatch, None)
    assert [found["random", name].value for name in ("contmax", "adasplash v2", "adasplash v1")] == [0.5, None, None]
    older = measured_beside(monkeypatch, types.SimpleNamespace(adasplash_v1=attention_by()))
    assert "adasplash2" in older["random", "adasplash v2"].details["refused"]


def test_peers_are_causal_where_we_are(monkeypatch):
    case = _entmax_attention._SMALL[0]._replace(is_causal=False)
    monkeypatch.setattr(_entmax_attention, "_SMALL", [case])
    library = types.SimpleNamespace(adasplash2=attention_by(), adasplash_v1=attention_by())
    found = measured_beside(monkeypatch, library)
    assert found["random", "adasplash v1"].value == 3.0
    assert found["random", "adasplash v2"].value is None


def test_decoding_beside_the_fastest_kernels():
    figures = list(decode_figures(bench.QUICK, StandIn(device=(2.0, 1.0, 1.0))))
    times = {figure.column: figure for figure in figures if figure.table.startswith("bfloat16, one token: device time")}
    assert {name: figure.value for name, figure in times.items()} == dict.fromkeys(times, 2.0)
    assert times["flat"].details["kernels"] == "MATH"  # the only one on a CPU
    assert times["flat"].details["keys_with_weight"] == 1.0
    assert 0 < times["random"].details["keys_with_weight"] < 1
    speeds = {figure.column: figure.value for figure in figures if "gigabytes" in figure.table}
    assert speeds["softmax, flat"] == pytest.approx(2 * speeds["flat"])
    assert speeds["random"] < speeds["flat"]
    read = {figure.column: figure.value for figure in figures if "keys that is read" in figure.table}
    assert read["random"] == 1.0
    assert 0 < read["distance"] < 1
    beside = {figure.column: figure for figure in figures if figure.table.endswith("that without")}
    assert {name: figure.at_most for name, figure in beside.items()} == {
        "random": 1.1,
        "topics": None,
        "distance": None,
    }

"""Launches of attention: once for each kind of call, shared by no other kind, and with blocks of the sizes told."""

import pytest
import torch

from attention_checks import F16, F32, _as_if_long, apart, assert_same, compared, drawn  # noqa: F401 a fixture
from contmax import entmax_attention
from contmax.kernels.attention import _gpu_call as _attention_call
from contmax.kernels.attention import _gpu_launches as _attention_launches
from contmax.kernels.attention import _sizes as _attention_tuning
from contmax.kernels.gpu._cached_launch import Launch

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_as_if_long")
MEMORIES = ("listing", "listed_means", "dense_means", "dense_gradients", "listed_gradients")


@pytest.fixture
def made(monkeypatch):
    """The launches that are made from now on, when none is remembered."""
    for name in MEMORIES:
        getattr(_attention_launches, name).cache_clear()
    launches, init = [], Launch.__init__

    def noted(self, *arguments, **options):
        launches.append(arguments[0].__name__)
        init(self, *arguments, **options)

    monkeypatch.setattr(Launch, "__init__", noted)
    return launches


def passed(given, **options):
    """Both passes."""
    inputs = [x.clone().requires_grad_() for x in given]
    output = entmax_attention(*inputs, **options)
    torch.autograd.grad(output, inputs, torch.ones_like(output))


@pytest.mark.parametrize("alphas", [(1.5, 1.5), (torch.tensor([1.3, 1.8]), torch.tensor([1.4, 1.9]))])
def test_a_call_of_the_same_kind_makes_no_launch(made, alphas):
    for alpha in alphas:
        passed(drawn(heads=2), alpha=alpha)
        assert len(made) == len(set(made)) == 11


def test_blocks_of_queries_have_launches_of_their_own(made, monkeypatch):
    small = _attention_tuning.Tuning(bytes_of_maxima=2**12, rows=16, columns=64)
    monkeypatch.setattr(_attention_call, "TUNING", small)
    passed(drawn(queries=40, keys=300))
    assert made.count("tile_maxima") == made.count("list_keys") == made.count("list_undecided") == 3
    assert made.count("dense_keys_backward") == 1


def test_a_bias_of_another_dtype_has_launches_of_its_own(made):
    bias = torch.zeros(19)
    for dtype in (F32, F16, F32, F16):
        passed(drawn(), bias=bias.to(dtype))
    assert len(made) == 2 * len(set(made))


_MASK = torch.arange(19) != 4
_KINDS = [
    {},
    {"alpha": 1.25},
    {"alpha": 2.0},
    {"scale": 0.1},
    {"scale": -0.1},
    {"is_causal": True},
    {"mask": _MASK},
    {"mask": _MASK.expand(5, 19).contiguous()},
    {"mask": torch.arange(95).view(19, 5).mT % 3 > 0},
    {"bias": torch.arange(19.0) / 19},
    {"bias": torch.arange(95.0).view(19, 5).mT / 95},
    {"bias": torch.arange(23.0) / 23},  # by distance
    {"lengths": torch.tensor([11])},
    {"lengths": torch.tensor([3])},
    {"alpha": torch.tensor([1.3])},
    {"alpha": torch.tensor([1.9])},
]


def test_kinds_in_turns():
    given = drawn(dtype=F32)
    for options in _KINDS:
        for inputs in (given, [x.to(F16) for x in given]):
            assert_same(inputs, **options)


def gradients(inputs, cotangent):
    inputs = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(entmax_attention(*inputs), inputs, cotangent)


@pytest.mark.parametrize(("keys", "sharp"), [(19, 2.0), (140, 0.01)], ids=["lists", "dense"])
def test_tensors_that_lie_otherwise_in_turns(keys, sharp):
    given, g = drawn(heads=2, keys=keys, sharp=sharp), torch.randn(1, 2, 5, 16)
    expected = gradients(given, g)
    moved = apart([*given, g])
    for i in range(4):
        mixed = [moved[j] if j == i else x for j, x in enumerate([*given, g])]
        for found, exact in zip(gradients(mixed[:3], mixed[3]), expected, strict=True):
            assert torch.allclose(found, exact, atol=1e-6)


def test_inputs_that_need_no_gradient_between_those_that_do():
    given = drawn()
    expected, _ = compared(given)[0]
    for _ in range(2):
        with torch.no_grad():
            assert (entmax_attention(*given) - expected).abs().max() < 1e-5
        assert_same(given)
        assert_same(given, torch.tensor([1.5]))


@pytest.mark.parametrize(("dtype", "channels", "columns"), [(F32, 64, 32), (F16, 64, 64), (F16, 128, 64)])
def test_chips_with_little_shared_memory(dtype, channels, columns, lists, monkeypatch):
    monkeypatch.setattr(_attention_tuning, "_is_large", lambda device: False)
    given = drawn(queries=2, keys=200, channels=channels, values=channels, dtype=dtype, sharp=0.01)
    chosen = _attention_tuning.TUNING.for_heads(channels, given[0])
    assert (chosen.dense_columns, chosen.dense_stages, chosen.dense_gradient_stages) == (columns, 1, 1)
    assert_same(given)
    assert lists[0].dense.any()


@pytest.mark.parametrize("dtype", [F32, F16])
def test_long_tiles_and_blocks_of_queries(monkeypatch, dtype, lists):
    small = _attention_tuning.Tuning(most_tiles=4, bytes_of_maxima=2**12, rows=16, columns=64)
    monkeypatch.setattr(_attention_call, "TUNING", small)
    assert_same(drawn(queries=17, keys=300, heads=1, sharp=3.0, dtype=dtype), is_causal=True)
    assert not lists[0].dense.any()

"""The loss of a linear layer by kernels for the GPU, in Triton's interpreter: gradients from lists of classes."""

import numpy as np
import pytest
import torch
from test_linear_loss import (
    BF16,
    F16,
    F32,
    layer,
    require_gradients_of_single_inputs,
    two_steps,
    value_and_gradients,
)
from torch.nn import functional as F

from contmax import entmax
from contmax.losses import linear_entmax_loss
from watched_memory import watched_memory

TOLERANCE = {F32: 1e-5, F16: 3e-3, BF16: 2e-2}
SUMS = "contmax.kernels.losses._gpu_weight_gradients"


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch, triton_takes_cpu_tensors):
    """Small layers have several tiles and blocks each way; the interpreter learns to multiply bfloat16."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, tl

    dot = InterpreterBuilder.create_dot

    def widened(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    wide_dot = lambda builder, a, b, *rest: dot(builder, widened(a), widened(b), *rest)  # noqa: E731
    monkeypatch.setattr(InterpreterBuilder, "create_dot", wide_dot)
    monkeypatch.setattr("contmax.losses._linear._FEWEST_TOKENS", 4)
    monkeypatch.setattr("contmax.losses._linear._FEWEST_CLASSES", 9)
    for name, value in (
        ("_CLASSES", 16),
        ("_CHANNELS", 16),
        ("_BLOCKS_OF_CLASSES", 3),
        ("_WIDE_TOKENS", 3),
        ("_TILE_TOKENS", 2),
        ("_TILE_CLASSES", 8),
        ("_TILES_IN_GROUP", 2),
    ):
        monkeypatch.setattr(f"{SUMS}.{name}", value)


@pytest.fixture
def short_lists(monkeypatch):
    monkeypatch.setattr("contmax.kernels.losses._operators._LONGEST_LIST", 4)


def support_sizes(hidden, weight, bias, alpha=1.5):
    return (entmax(F.linear(hidden, weight, bias).detach().double(), alpha) > 0).sum(-1)


def mixed(*sizes, dtype=F32):
    """A layer with flat logits for some tokens, which have more classes than a short list holds."""
    hidden, weight, bias, target = layer(*sizes, dtype)
    with torch.no_grad():
        hidden[1::3] *= 0.02
        bias *= 0.02
    sizes = support_sizes(hidden, weight, bias)
    assert (sizes > 4).any()
    assert (sizes <= 4).any()
    return hidden, weight, bias, target


def assert_accurate(arguments, alpha=1.5, **options):
    hidden, weight, bias, target = arguments
    wide = [None if x is None else x.detach().double().requires_grad_() for x in (hidden, weight, bias)]
    exact = value_and_gradients(two_steps, *wide, target, alpha, **options)
    ours = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target, alpha, **options)
    for got, expected in zip(ours, exact, strict=True):
        assert got.dtype == hidden.dtype
        error = float((got.double() - expected).detach().abs().max())
        assert error <= TOLERANCE[hidden.dtype] * max(1.0, float(expected.detach().abs().max()))
    return ours


@pytest.mark.parametrize(
    ("dtype", "alpha", "smoothing"),
    [(F32, 1.0, 0.1), (F32, 1.25, 0.0), (F32, 1.5, 0.2), (F32, 1.7, 0.0), (F16, 1.5, 0.0), (BF16, 2.0, 0.0)],
)
def test_gradients(dtype, alpha, smoothing):
    assert_accurate(layer(7, 19, 45, dtype), alpha, label_smoothing=smoothing)


@pytest.mark.parametrize(("dtype", "smoothing"), [(F32, 0.0), (F32, 0.3), (F16, 0.3), (BF16, 0.0)])
def test_tokens_with_and_without_lists(dtype, smoothing, short_lists):
    assert_accurate(mixed(9, 19, 45, dtype=dtype), label_smoothing=smoothing, reduction="none")


@pytest.mark.parametrize("alpha", [1.3, 2.0])
def test_only_tokens_without_lists(alpha, short_lists):
    hidden, weight, bias, target = layer(5, 3, 33, F32, size=0.02)
    bias = (0.02 * bias).detach().requires_grad_()
    assert (support_sizes(hidden, weight, bias, alpha) > 4).all()
    for some in (target, target.clamp(min=0)):  # one counts nothing, or all count: then the last is alone in its tile
        assert_accurate((hidden, weight, bias, some), alpha)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 2), (3, 17, 16), (9, 2, 49)])
def test_sizes_that_do_not_divide(shape):
    hidden, weight, bias, target = layer(*shape, F32)
    assert_accurate((hidden, weight, bias, target.clamp(min=0)))
    assert_accurate((hidden, weight, None, target))


def test_tokens_whose_lists_are_full_to_the_last_place(short_lists):
    """Of the eight tokens two each have mass on 3, 4, 5 and all classes; a list holds four."""
    logits = torch.full((8, 40), -20.0)
    for token, classes in enumerate((3, 4, 5, 40, 3, 4, 5, 40)):
        logits[token, :classes] = 0.0
    hidden, weight, bias = (x.requires_grad_() for x in (logits, torch.eye(40), torch.zeros(40)))
    assert support_sizes(hidden, weight, bias).tolist() == [3, 4, 5, 40, 3, 4, 5, 40]
    assert_accurate((hidden, weight, bias, torch.arange(8) * 5 % 40), reduction="none")


def test_coefficients_of_half_precision_are_not_rounded():
    """Of one token the gradient of the weight is a product, which is rounded once."""
    hidden = (torch.arange(1.0, 17.0).view(1, 16) / 16).half().requires_grad_()
    weight = (torch.arange(9 * 16).view(9, 16) % 7 / 8).half().requires_grad_()  # the logits are exact
    inputs, target = (hidden, weight), torch.tensor([2])
    (found,) = torch.autograd.grad(linear_entmax_loss(*inputs, target), weight)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    (exact,) = torch.autograd.grad(linear_entmax_loss(*wide, target), wide[1])
    unit = torch.exp2(exact.abs().clamp(min=2**-14).log2().floor() - 10)  # the last digit of float16
    assert ((found.double() - exact).abs() <= 0.51 * unit).all()


def test_class_ids_that_do_not_exist(monkeypatch):
    """On a GPU nobody looks at them first."""
    monkeypatch.setattr("contmax.losses._finite.is_eager_cpu", lambda *_: False)
    hidden, weight, bias, target = layer(6, 5, 40, F32)
    target[1:4] = torch.tensor([40, -1, 2**31])
    with watched_memory():
        loss, *gradients = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target, reduction="none")
    assert loss.isnan().tolist() == [False, True, True, True, False, False]
    assert all(x.shape == y.shape for x, y in zip(gradients, (hidden, weight, bias), strict=True))


def test_many_tokens_of_one_class():
    hidden, weight, bias, _ = layer(24, 5, 20, F32)
    with torch.no_grad():
        bias[7] += 3  # has mass for most tokens
    assert_accurate((hidden, weight, bias, torch.full((24,), 7)))


def test_classes_that_are_tied():
    hidden, weight, bias, target = layer(6, 5, 40, F32, biased=False)
    with torch.no_grad():
        weight[1::2] = weight[::2]
    assert_accurate((hidden, weight, bias, target))


def test_tokens_that_count_nothing():
    hidden, weight, bias, target = layer(6, 5, 40, F32)
    results = value_and_gradients(linear_entmax_loss, hidden, weight, bias, torch.full_like(target, -100))
    assert all(not x.any() for x in results)


@pytest.mark.parametrize("capacity", [4, 256])
def test_classes_that_are_ruled_out(capacity, monkeypatch):
    monkeypatch.setattr("contmax.kernels.losses._operators._LONGEST_LIST", capacity)
    hidden, weight, bias, target = mixed(6, 5, 40)
    with torch.no_grad():
        bias[::3] = -torch.inf
    assert_accurate((hidden, weight, bias, torch.where(target < 0, target, target // 3 * 3 + 1).clamp(max=37)))


def test_a_row_of_nothing_is_infinite_without_nan():
    hidden, weight, bias, target = layer(3, 5, 40, F32)
    with torch.no_grad():
        bias.fill_(-torch.inf)
    loss, *gradients = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target, reduction="none")
    assert torch.equal(loss.isinf(), target >= 0)
    assert all(not g.isnan().any() for g in gradients)


@pytest.mark.parametrize("counts", [True, False])
def test_nan_reaches_the_gradients_if_its_token_counts(counts):
    hidden, weight, bias, target = layer(6, 5, 40, F32)
    with torch.no_grad():
        hidden[1 if counts else 0, 2] = torch.nan
    loss = linear_entmax_loss(hidden, weight, target, bias=bias, reduction="none")
    _, weight_grad, bias_grad = torch.autograd.grad(loss[target >= 0].sum(), (hidden, weight, bias))
    assert weight_grad.isnan().all() if counts else weight_grad.isfinite().all()
    assert bias_grad.isnan().all() if counts else bias_grad.isfinite().all()


@pytest.mark.parametrize("cotangent", [torch.inf, torch.nan])
def test_cotangents_that_are_not_finite_reach_every_class(cotangent):
    hidden, weight, bias, target = layer(6, 5, 40, F32)
    loss = linear_entmax_loss(hidden, weight, target, bias=bias, reduction="sum")
    gradients = torch.autograd.grad(loss, (weight, bias), torch.tensor(cotangent))
    assert all(not g.isfinite().any() for g in gradients)


def test_only_what_needs_a_gradient_gets_one(short_lists):
    require_gradients_of_single_inputs(*mixed(4, 5, 20))


def test_half_precision_is_as_accurate_as_two_steps(short_lists):
    # Not in bfloat16: the interpreter cuts its digits off instead of rounding.
    arguments = mixed(30, 16, 12, dtype=F16)
    wide = [x.detach().double().requires_grad_() for x in arguments[:3]]
    exact = value_and_gradients(two_steps, *wide, arguments[3])
    ours = value_and_gradients(linear_entmax_loss, *arguments)
    theirs = value_and_gradients(two_steps, *arguments)
    for got, plain, expected in zip(ours, theirs, exact, strict=True):
        error, allowed = ((x.double() - expected).norm() for x in (got, plain))
        assert error <= 1.2 * allowed + 0.1 * torch.finfo(F16).eps * expected.norm()


def test_layouts_of_memory():
    hidden, weight, bias, target = layer(6, 5, 40, F32)
    hidden, weight = (x.detach().mT.contiguous().mT.requires_grad_() for x in (hidden, weight))
    assert_accurate((hidden, weight, bias[torch.arange(40)].detach().requires_grad_(), target))


@pytest.mark.graph
def test_compiles_whole(short_lists):
    torch._dynamo.reset()
    function = torch.compile(linear_entmax_loss, fullgraph=True, backend="aot_eager_default_partitioner")
    arguments = mixed(6, 5, 40)
    ours = value_and_gradients(function, *arguments)
    torch.testing.assert_close(ours, value_and_gradients(linear_entmax_loss, *arguments), rtol=0, atol=0)

"""More rows than 32 bits number: launches of tensors without memory, and parts of few rows in Triton's interpreter."""

import pytest
import torch

import contmax
from contmax.kernels.gpu import _launch
from contmax.kernels.gpu._cached_launch import Launch
from contmax.kernels.losses import _gpu_weight_gradients, row_losses, row_losses_backward
from contmax.kernels.rows import _gpu_maps as _maps
from contmax.kernels.rows._gpu_maps import entmax_rows, entmax_rows_backward
from contmax.losses import entmax_loss, linear_entmax_loss
from row_checks import short_rows_by_lists

TOO_MANY = 2**31 + 5
BF16 = torch.bfloat16
SHAPES = {
    "short": (TOO_MANY, 2),
    "after an axis of one": (1, TOO_MANY, 3),
    "several axes": (3, 2, 2**30, 2),
    "long, with many slices in all": (2**28 + 1, 40000),
}


@pytest.fixture
def launches(monkeypatch):
    """What would be launched."""
    made = []
    monkeypatch.setattr(Launch, "__call__", lambda self, *tensors: made.append(self))
    return made


def nowhere(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("alpha", [1.5, 3.0, "per row"])
def test_launches_of_maps_number_their_rows_in_32_bits(name, alpha, launches):
    x = nowhere(*SHAPES[name])
    index = nowhere(*x.shape[:-1], 1, dtype=torch.float32) if alpha == "per row" else alpha
    mask = nowhere(x.shape[-1], dtype=torch.bool)
    p, omega = entmax_rows(x, index, mask, BF16, needs_omega=True)
    assert p.shape == x.shape
    assert omega.shape == (*x.shape[:-1], 1)
    assert_numbered(launches, x)
    launches.clear()
    entmax_rows_backward(p, x, index, BF16, needs_alpha=alpha == "per row")
    assert_numbered(launches, x)


@pytest.mark.parametrize("name", SHAPES)
def test_launches_of_losses_number_their_rows_in_32_bits(name, launches):
    z = nowhere(*SHAPES[name])
    ids, g = nowhere(*z.shape[:-1], dtype=torch.int32), nowhere(1).expand(z.shape[:-1])
    for target in (ids, z):
        losses, statistics = row_losses(z, target, None, 1.5, 0.1)
        assert losses.shape == z.shape[:-1]
        assert_numbered(launches, z)
        launches.clear()
        row_losses_backward(z, target, None, 1.5, 0.1, statistics, g, target is z)
        assert_numbered(launches, z)
        launches.clear()


def assert_numbered(launches, x):
    """Every launch has numbers of 32 bits for its programs and rows, and for the five sums of each slice of a row."""
    assert launches
    rows = {}
    for launch in launches:
        programs, slices, _ = launch.grid
        each = launch._kinds.get("R", launch._kinds.get("ROWS", 1))
        assert programs * each < 2**31
        if "CAPACITY" in launch._kinds:
            assert 5 * programs * slices < 2**31
        rows[launch.kernel] = rows.get(launch.kernel, 0) + programs * each
    # All rows are taken, by every kernel, and not many more.
    total = x.numel() // x.shape[-1]
    assert all(total <= count < 1.01 * total for count in rows.values())


def test_the_quick_way_does_not_take_too_many_rows():
    like = (BF16, BF16, -1, 1.5)
    assert _maps._ready_rows((TOO_MANY, 2), (2, 1), *like) is None
    assert _maps._ready_rows((1000, 2), (2, 1), *like) is not None


# -- parts of a few rows, in the interpreter ---------------------------------------------------------------------------

in_interpreter = pytest.mark.usefixtures("triton_takes_cpu_tensors")
# On the chip, and by lists in two slices.
shapes = pytest.mark.parametrize("shape", [(7, 9), (2, 6, 9), (1, 7, 9), (2, 2, 3, 9), (3, 70), (2, 3, 70)], ids=str)


def assert_same_in_parts(function, *arguments):
    """Results and gradients of a function are the same if a launch takes five slices of rows at most."""
    tensors = [x.requires_grad_() for x in arguments]
    results = []
    with short_rows_by_lists(64, 32, (64, 40), 32), pytest.MonkeyPatch.context() as patch:
        for most in (_launch.MOST_SLICES, 5):
            patch.setattr(_launch, "MOST_SLICES", most)
            _maps._ready_rows.cache_clear()
            result = function(*arguments)
            # Its axes lie in memory the other way round.
            cotangent = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).reshape(result.shape[::-1])
            cotangent = cotangent.permute(*reversed(range(result.dim())))
            results.append([result, *torch.autograd.grad(result, tensors, cotangent)])
    for whole, parts in zip(*results, strict=True):
        # Rows of one program take their steps together, so that rounding may differ.
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


@in_interpreter
@shapes
def test_maps_in_parts(shape):
    x, mask = 2 * torch.randn(shape), torch.rand(shape[-1]) > 0.3
    # Of the rows, the last ones are beyond two, which take the interpreter many times as long as others.
    alpha = torch.linspace(1.2, 2.2, x[..., 0].numel()).reshape(*shape[:-1], 1)
    assert_same_in_parts(lambda x: contmax.entmax(x, 1.5), x)
    assert_same_in_parts(lambda x, alpha: contmax.entmax(x, alpha, mask=mask), x, alpha)
    assert_same_in_parts(lambda x: contmax.entmax(x.expand(shape), 1.3), x.detach()[:1].clone())


@in_interpreter
@shapes
def test_losses_in_parts(shape):
    z, ids = 2 * torch.randn(shape), torch.randint(0, shape[-1], shape[:-1])
    mask = torch.rand(shape) > 0.2
    options = {"dim": -1, "mask": mask, "label_smoothing": 0.1, "reduction": "none"}
    assert_same_in_parts(lambda z: entmax_loss(z, ids, 1.5, **options), z)
    assert_same_in_parts(lambda z, q: entmax_loss(z, q, 1.5, **options), z, torch.randn(shape).softmax(-1))
    assert_same_in_parts(lambda z: entmax_loss(z, ids, 1.3, dim=-1).reshape(1), z)


@in_interpreter
@pytest.mark.parametrize("biased", [False, True])
def test_more_pairs_of_tokens_and_classes_than_torch_sorts(biased, monkeypatch):
    hidden, weight = torch.randn(11, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    bias = torch.randn(20, requires_grad=True) if biased else None
    ids, live = torch.randint(0, 20, (11,)), [x for x in (hidden, weight, bias) if x is not None]

    def gradients():
        return torch.autograd.grad(linear_entmax_loss(hidden, weight, ids, 1.5, bias=bias), live)

    whole = gradients()
    monkeypatch.setattr(_gpu_weight_gradients, "_MOST_PAIRS", 4 * 257 + 1)  # those of four tokens
    for ours, expected in zip(gradients(), whole, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)

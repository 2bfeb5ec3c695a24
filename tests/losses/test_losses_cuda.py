"""Losses on a GPU: numbers and gradients of float64 on the CPU, and nothing waits."""

import pytest
import torch
from torch.distributions import Independent, Laplace, Normal, Uniform

import contmax
from contmax.densities import BetaGaussian, Empirical, MultivariateBetaGaussian, Triangular
from contmax.losses import entmax_loss, fenchel_young, sparsemax_loss
from cuda_checks import BF16, DEVICE, DTYPES, F32, ON_GPU, Captured, Fixed, assert_accurate, drawn, without_waiting
from row_checks import (
    check_class_ids_that_do_not_exist,
    check_gradients_of_losses_that_half_precision_cannot_hold,
    check_losses_are_not_negative,
)

pytestmark = pytest.mark.gpu
ROWS, CLASSES = 12, 1000


def ids(rows=ROWS, classes=CLASSES):
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(3))


def logits(rows=ROWS, classes=CLASSES):
    return drawn(rows, classes, scale=2.0)


# -- finite ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2, 4 / 3, 1.5, 2.0, 3.0])
def test_every_alpha(alpha):
    assert_accurate(lambda z, y: entmax_loss(z, y, alpha), [logits(), ids()])


@DTYPES
@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_every_dtype_and_reduction(alpha, dtype):
    # Three numbers and a gradient each: "none" is what the others are made of.
    assert_accurate(lambda z, y: entmax_loss(z, y, alpha, reduction="none"), [logits(), ids()], dtype)
    assert_accurate(lambda z, y: entmax_loss(z, y, alpha, reduction="mean"), [logits(), ids()], dtype)
    assert_accurate(lambda z, y: entmax_loss(z, y, alpha, reduction="sum"), [logits(), ids()], dtype)


def ignored():
    y = ids()
    y[::4] = -100
    return y


weight = Fixed(torch.linspace(0.1, 2.0, CLASSES))
mask = torch.rand(CLASSES, generator=torch.Generator().manual_seed(4)) > 0.3
OPTIONS = {
    "ignore_index": (lambda z, y: entmax_loss(z, y), [ignored()]),
    "another ignore_index": (lambda z, y: sparsemax_loss(z, y, ignore_index=7), [ids().clamp(max=7)]),
    "nothing counts": (lambda z, y: entmax_loss(z, y), [torch.full((ROWS,), -100)]),
    "weight": (lambda z, y, w: entmax_loss(z, y, 1.5, weight=w), [ignored(), weight]),
    "label smoothing": (lambda z, y: entmax_loss(z, y, 1.5, label_smoothing=0.1), [ignored()]),
    "smoothing and weight": (lambda z, y, w: sparsemax_loss(z, y, weight=w, label_smoothing=0.1), [ignored(), weight]),
    "mask": (lambda z, y, m: entmax_loss(z, y, 1.5, mask=m | (torch.arange(CLASSES, device=z.device) == y[:, None])),
             [ids(), mask]),
    "mask and smoothing": (lambda z, y, m: sparsemax_loss(z, y.clamp(max=0), mask=m.index_fill(0, y.clamp(max=0), True),
                                                          label_smoothing=0.2), [ids(), mask]),
    "soft targets": (lambda z, y: entmax_loss(z, y, 1.5), [torch.softmax(drawn(ROWS, CLASSES, seed=8), -1)]),
    "soft targets, smoothing": (
        lambda z, y: sparsemax_loss(z, y, label_smoothing=0.1), [torch.softmax(drawn(ROWS, CLASSES, seed=8), -1)]),
    "one alpha": (lambda z, y, a: entmax_loss(z, y, a), [ids(), torch.tensor(1.4)]),
    "alpha per row": (lambda z, y, a: entmax_loss(z, y, a), [ignored(), torch.linspace(1.05, 1.95, ROWS)[:, None]]),
    "alpha around one and beyond two": (
        lambda z, y, a: entmax_loss(z, y, a), [ids(), torch.linspace(0.8, 2.6, ROWS)[:, None]]),
}  # fmt: skip


@pytest.mark.parametrize("option", list(OPTIONS))
def test_options(option):
    function, arguments = OPTIONS[option]
    assert_accurate(function, [logits(), *arguments], ulps=16)


def test_classes_along_another_axis():
    y = torch.randint(0, 30, (4, 5, 6), generator=torch.Generator().manual_seed(3))
    assert_accurate(lambda z, y: entmax_loss(z, y, 1.5), [drawn(4, 30, 5, 6), y])
    assert_accurate(lambda z, y: entmax_loss(z, y, 1.5, dim=-1), [drawn(4, 5, 6, 30), y])
    assert_accurate(lambda z: entmax_loss(z, torch.zeros((), dtype=torch.long, device=z.device), 2.0), [drawn(30)])


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("classes", [32000, 70000, 128256])
def test_large_vocabularies(classes, dtype):
    assert_accurate(lambda z, y: entmax_loss(z, y, 1.5, ignore_index=-1), [logits(9, classes), ids(9, classes)], dtype)


def test_a_solved_row_has_loss_zero():
    z = torch.zeros(3, 1000, device=DEVICE)
    z[:, 5] = torch.tensor([0.5, 3.0, 100.0])
    y = torch.full((3,), 5, device=DEVICE)
    z.requires_grad_()
    losses = entmax_loss(z, y, 1.5, reduction="none")
    gradient = torch.autograd.grad(losses.sum(), z)[0]
    assert losses[0] > 0
    assert not losses[1:].any()
    assert not gradient[1:].any()


def test_a_target_at_minus_infinity_is_infinite_with_a_finite_gradient():
    z = drawn(3, 1000)
    z[1, 5] = -torch.inf
    z = z.to(DEVICE).requires_grad_()
    losses = entmax_loss(z, torch.full((3,), 5, device=DEVICE), 1.5, reduction="none")
    assert losses[1] == torch.inf
    assert torch.autograd.grad(losses, z, torch.ones_like(losses))[0].isfinite().all()


@pytest.mark.skipif(not ON_GPU, reason="the CPU raises")
@pytest.mark.parametrize("classes", [70, 9000])  # on the chip, and by lists
def test_class_ids_that_do_not_exist(classes):
    check_class_ids_that_do_not_exist(DEVICE, classes)


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 2.0])
def test_losses_are_not_negative(alpha):
    check_losses_are_not_negative(alpha, DEVICE)


@pytest.mark.skipif(not ON_GPU, reason="the CPU computes in float32, and torch makes infinities of it")
@pytest.mark.parametrize("classes", [70, 9000])
def test_gradients_that_half_precision_cannot_hold(classes):
    check_gradients_of_losses_that_half_precision_cannot_hold(DEVICE, classes)


def test_autocast():
    z, y = logits().to(DEVICE, BF16).requires_grad_(), ids().to(DEVICE)

    def call():
        with torch.autocast(DEVICE, dtype=BF16):
            loss = entmax_loss(z, y, 1.5)
        return loss, torch.autograd.grad(loss, z)[0]

    loss, gradient = without_waiting(call)
    assert loss.dtype == F32
    assert gradient.dtype == BF16
    torch.testing.assert_close(loss, entmax_loss(z.detach().float(), y, 1.5))


def test_a_second_derivative():
    def gradient(z, y):
        return torch.autograd.grad(entmax_loss(z, y, 1.5), z, create_graph=True)

    assert_accurate(gradient, [drawn(4, 30), ids(4, 30)], ulps=64)


def test_captured_in_a_graph():
    z, y = logits().to(DEVICE).requires_grad_(), ignored().to(DEVICE)

    def call():
        loss = entmax_loss(z, y, 1.5, label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(loss, z)

    graph = Captured(call)
    with torch.no_grad():
        z.copy_(drawn(ROWS, CLASSES, seed=9))
        y.copy_(ids())
    for got, expected in zip(graph.replay(), call(), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.graph
def test_compiled():
    z, y = logits().to(DEVICE).requires_grad_(), ids().to(DEVICE)
    traced = torch.compile(lambda z, y: entmax_loss(z, y, 1.5), fullgraph=True)
    expected = torch.autograd.grad(entmax_loss(z, y, 1.5), z)[0]
    torch.testing.assert_close(torch.autograd.grad(traced(z, y), z)[0], expected)


@pytest.mark.skipif(not ON_GPU, reason="CPU memory is measured elsewhere")
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_memory_beside_the_gradient_is_small(dtype):
    z, y = torch.randn(512, 128256, device=DEVICE, dtype=dtype).requires_grad_(), ids(512, 128256).to(DEVICE)
    torch.autograd.grad(entmax_loss(z, y, 1.5), z)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(entmax_loss(z, y, 1.5), z)
    assert torch.cuda.max_memory_allocated() - before <= 1.02 * z.numel() * z.element_size()


def test_linear_loss():
    linear = getattr(contmax.losses, "linear_entmax_loss", None)
    if linear is None:
        pytest.skip("contmax.losses.linear_entmax_loss is not there yet")
    arguments = [drawn(40, 64), drawn(CLASSES, 64, scale=0.2), ids(40)]
    assert_accurate(lambda h, w, y: linear(h, w, y, 1.5), arguments, tolerance=3e-5)
    assert_accurate(lambda h, w, y: entmax_loss(h @ w.mT, y, 1.5), arguments, tolerance=3e-5)
    assert_accurate(lambda h, w, y: linear(h, w, y, 1.5), arguments, BF16, tolerance=2e-2)


# -- continuous --------------------------------------------------------------------------------------------------------

line = [torch.tensor([0.3, -1.2, 0.6]), torch.tensor([0.7, 1.4, 0.2])]
TARGETS = {
    "uniform": lambda at: Uniform(at - 1, at + 1.5, validate_args=False),
    # torch's own distributions copy a number to the device, and wait.
    "normal": lambda at: Normal(at, torch.full_like(at, 0.4), validate_args=False),
    "laplace": lambda at: Laplace(at, torch.full_like(at, 0.4), validate_args=False),
    "parabola": lambda at: BetaGaussian(at, 0.3, 2.0, validate_args=False),
    "triangular": lambda at: Triangular(at, 0.5, validate_args=False),
    "observation": lambda at: at,
    "samples": lambda at: Empirical(torch.stack([at, at + 0.3, at - 1], -1), event_dim=0, validate_args=False),
}


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("target", list(TARGETS))
def test_continuous_losses(target, alpha):
    def loss(loc, scale, at):
        return fenchel_young(BetaGaussian(loc, scale, alpha, validate_args=False), TARGETS[target](at))

    assert_accurate(loss, [*line, torch.tensor([0.1, -1.0, 0.8])], tolerance=2e-5)


def test_continuous_losses_with_masks_weights_and_a_learned_alpha():
    def loss(loc, scale, alpha, at, labelled, weight):
        prediction = BetaGaussian(loc, scale, alpha, validate_args=False)
        return fenchel_young(prediction, TARGETS["uniform"](at), mask=labelled, weight=weight, reduction="mean")

    at = torch.tensor([0.1, torch.nan, 0.8])
    labelled, weight = torch.tensor([True, False, True]), Fixed(torch.tensor([1.0, 2.0, 3.0]))
    assert_accurate(loss, [*line, torch.tensor([1.3, 1.5, 1.9]), Fixed(at), labelled, weight], tolerance=2e-5)


def test_continuous_losses_on_the_plane():
    def loss(loc, factor):
        matrix = factor @ factor.mT + 0.1 * torch.eye(2, dtype=loc.dtype, device=loc.device)
        box = Independent(Uniform(loc.detach() - 0.4, loc.detach() + 0.9, validate_args=False), 1)
        return fenchel_young(MultivariateBetaGaussian(loc, matrix, 2.0, validate_args=False), box)

    assert_accurate(loss, [drawn(5, 2), drawn(5, 2, 2)], tolerance=2e-5)

"""Rows and losses by Triton's kernels, in its interpreter, against float64 torch."""

import contextlib

import pytest
import torch

import contmax
from contmax.losses import entmax_loss
from row_checks import (
    check_class_ids_that_do_not_exist,
    check_cotangents_where_nothing_has_mass,
    check_gradients_of_losses_that_half_precision_cannot_hold,
    check_gradients_that_half_precision_cannot_hold,
    check_losses_are_not_negative,
    reference,
    short_rows_by_lists,
)

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")
ALPHAS = [0.6, 1.0001, 1.25, 1.3, 4 / 3, 1.5, 2.0, 20.0]
INF, NAN = float("inf"), float("nan")


def gradients(function, cotangent, *arguments):
    """The result and the gradients of the floating-point tensors among the arguments."""
    inputs = [a.detach().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
    result = function(*inputs)
    wanted = [a for a in inputs if torch.is_tensor(a) and a.requires_grad]
    return [result.detach(), *torch.autograd.grad(result, wanted, cotangent.to(result.dtype))]


def assert_as_float64(function, cotangent, *arguments, tolerance=2e-6):
    found = gradients(function, cotangent, *arguments)
    exact = reference(lambda *a: gradients(function, cotangent, *a), *arguments)
    for ours, truth in zip(found, exact, strict=True):
        assert torch.allclose(ours.double(), truth, atol=tolerance * (1 + truth.abs().max().item()), rtol=0)


@pytest.fixture(params=["on the chip", "by lists"])
def length(request):
    """Rows of both kinds, in small, those that are listed in slices of two chunks."""
    with short_rows_by_lists(32, 32, (64, 12), 8) if request.param == "by lists" else contextlib.nullcontext():
        yield 70


@pytest.mark.parametrize("alpha", ALPHAS)
def test_maps(alpha, length):
    x, g = torch.randn(3, length), torch.randn(3, length)
    x[1] *= 0.01  # flat: nearly all have mass, and lists overflow
    x[2, :20] = x[2].max()  # ties
    tolerance = 2e-6 if alpha <= 2 else 2e-5
    assert_as_float64(lambda x: contmax.entmax(x, alpha), g, x, tolerance=tolerance)


@pytest.mark.parametrize("alpha", [1.2501, 1.4999, 1.9998])
def test_alphas_next_to_those_whose_powers_are_products(alpha):
    assert_as_float64(lambda x: contmax.entmax(x, alpha), torch.randn(3, 9), torch.randn(3, 9))


def test_one_alpha_per_row_with_its_gradient(length):
    x, g = 2 * torch.randn(7, length), torch.randn(7, length)
    alpha = torch.tensor([0.5, 1.0, 1.0003, 1.3, 1.9, 2.0, 4.0])[:, None]
    assert_as_float64(contmax.entmax, g, x, alpha, tolerance=1e-5)


# What is read and written does not know of the solver that α chooses.
@pytest.mark.parametrize(("dtype", "tolerance", "alpha"), [(torch.float16, 1e-3, 1.5), (torch.bfloat16, 8e-3, 3.0)])
def test_half_precision_is_rounded_once(dtype, tolerance, alpha, length):
    x, g = (2 * torch.randn(3, length)).to(dtype), torch.randn(3, length).to(dtype)
    p = contmax.entmax(x, alpha)
    assert p.dtype == dtype
    exact = reference(lambda x: contmax.entmax(x, alpha), x)
    assert torch.allclose(p.double(), exact, atol=tolerance / 2, rtol=tolerance)
    assert_as_float64(lambda x: contmax.entmax(x, alpha), g, x, tolerance=tolerance)


@pytest.mark.parametrize("columns", [1, 2, 63])
def test_lengths(columns):
    x, g = torch.randn(9, columns), torch.randn(9, columns)
    for alpha in (1.3, 2.0):
        assert_as_float64(lambda x, a=alpha: contmax.entmax(x, a), g, x)


def test_axes_strides_and_masks(length):
    whole = torch.randn(1, 2, length + 3, 3)
    x = whole.transpose(1, 3)[:, :, 2:-1]  # (1, 3, length, 2), no axis contiguous
    mask = torch.rand(3, length, 1) > 0.4
    mask[1] = False  # nothing to attend
    for dim in (2, -1):
        g = torch.randn(x.shape)
        allowed = mask if dim == 2 else None
        assert_as_float64(lambda x, d=dim, m=allowed: contmax.entmax(x, 1.5, d, mask=m), g, x)
    p = contmax.entmax(x, 1.5, 2, mask=mask)
    assert torch.equal(p[:, 1], torch.zeros_like(p[:, 1]))


def test_rows_that_are_not_numbers(length):
    x = torch.randn(5, length)
    x[0, 3], x[1], x[2, 5], x[3, 7] = NAN, -INF, INF, -INF
    for alpha in (2.0, torch.full((5, 1), 3.0)):
        p, gradient = gradients(lambda x, a=alpha: contmax.entmax(x, a), torch.ones(5, length), x)
        assert gradient[[0, 2]].isnan().all()
        assert torch.allclose(gradient[[1, 3, 4]], torch.zeros(3, length), atol=1e-6)
        assert p[0].isnan().all()
        assert torch.equal(p[1], torch.zeros(length))
        assert p[2].isnan().all()
        assert torch.allclose(p[3:].sum(-1), torch.ones(2))
        assert p[3, 7] == 0


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0, 3.0])
def test_cotangents_where_nothing_has_mass(alpha, length):
    check_cotangents_where_nothing_has_mass(3 * torch.randn(3, length), alpha)


@pytest.mark.parametrize("alpha", [1.9, 2.0, 3.0])
def test_gradients_that_half_precision_cannot_hold(alpha, length):
    x = 0.1 * torch.randn(2, length)
    x[1, 8:] -= 9.0  # few have mass, and are listed
    check_gradients_that_half_precision_cannot_hold(x, alpha)


def test_an_empty_batch():
    assert contmax.entmax(torch.empty(0, 5), 1.5).shape == (0, 5)
    assert entmax_loss(torch.empty(0, 5), torch.empty(0, dtype=torch.long)) == 0


def test_a_score_at_the_threshold_has_no_mass():
    # At α = 2 the gradient jumps where the threshold meets a score: half-precision scores do meet it.
    x = torch.tensor([[2.0, 1.0, 1.0, 0.0], [9.625, 8.75, 8.6875, 0.0], [8.75, 8.375, 8.25, 8.125]])
    support = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    assert torch.equal(contmax.sparsemax(x) > 0, support)


@pytest.mark.parametrize("alpha", [2.0, torch.tensor(2.0)], ids=["number", "tensor"])
def test_scores_that_rounding_leaves_at_the_threshold_have_no_mass(alpha):
    x = torch.randn(3000, 50, generator=torch.Generator().manual_seed(50)).mul(16).round() / 16
    exact = x.double()
    support = contmax.sparsemax(exact) > 0
    thresholds = ((exact * support).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    some = ((exact - thresholds).abs() < 1e-12).any(-1)
    assert some.sum() > 100
    assert torch.equal(contmax.entmax(x[some], alpha) > 0, support[some])


@pytest.mark.parametrize(
    ("alpha", "options"),
    [
        (1.0, {}),
        (1.5, {"label_smoothing": 0.1}),
        (1.5, {"masked": True}),
        (1.0, {"masked": True, "label_smoothing": 0.2}),
        (3.0, {}),
    ],
)
def test_class_losses(alpha, options, length):
    z, y, g = 2 * torch.randn(3, length), torch.randint(length, (3,)), torch.rand(3)
    z[1] *= 0.01
    y[2] = -100
    options = dict(options)
    if options.pop("masked", False):
        options["mask"] = (torch.rand(3, length) > 0.3).scatter(1, y.clamp(min=0)[:, None], True)
    assert_as_float64(lambda z: entmax_loss(z, y, alpha, reduction="none", **options), g, z)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_of_losses_need_not_read_where_nothing_has_mass(smoothing):
    z = torch.randn(2, 1100)
    z[0, 700] = 30.0  # the first and the last chunk have no mass
    y = torch.tensor([3, 1099])
    assert_as_float64(lambda z: entmax_loss(z, y, 1.5, label_smoothing=smoothing, reduction="none"), torch.ones(2), z)


@pytest.mark.parametrize("alpha", [1.05, 1.25])
def test_losses_are_not_negative(alpha):
    check_losses_are_not_negative(alpha)


def test_class_ids_that_do_not_exist(length):
    check_class_ids_that_do_not_exist(columns=length)


def test_gradients_of_losses_that_half_precision_cannot_hold(length):
    check_gradients_of_losses_that_half_precision_cannot_hold(columns=length)


def test_targets_that_are_masked(length):
    z, y, mask = torch.randn(2, length), torch.tensor([3, 5]), torch.ones(2, length, dtype=torch.bool)
    mask[0, 3] = False
    losses, gradient = gradients(lambda z: entmax_loss(z, y, 1.5, mask=mask, reduction="none"), torch.ones(2), z)
    assert losses.isinf().tolist() == [True, False]
    assert gradient.isfinite().all()
    assert gradient[0, 3] == 0
    # Where all is smoothed it does not matter which class is the target.
    smoothed = [entmax_loss(z, ids, 1.5, mask=mask, label_smoothing=1.0) for ids in (y, y - 1)]
    assert smoothed[0].isfinite()
    assert torch.equal(*smoothed)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)])
def test_cotangents_that_losses_share(shape, length):
    z, y, g = torch.randn(2, 3, length), torch.randint(length, (2, 3)), torch.rand(shape).expand(2, 3)
    soft = torch.randn(2, 3, length).softmax(-1)
    for target in (y, soft):
        assert_as_float64(lambda z, t: entmax_loss(z, t, 1.5, dim=-1, reduction="none"), g, z, target)


def test_many_rows_with_alpha_on_both_sides_of_two(monkeypatch):
    # No other test has this shape, for which launches are kept.
    monkeypatch.setattr("contmax.kernels.rows._gpu_maps._MANY_ROWS", 2)  # a program looks after sixteen of them
    x, alpha, g = 0.1 * torch.randn(19, 3), torch.full((19, 1), 1.5), torch.randn(19, 3)
    alpha[[0, 15, 18]] = torch.tensor([[3.0], [2.5], [4.0]])
    assert_as_float64(contmax.entmax, g, x, alpha, tolerance=1e-5)


def check_soft_targets(alpha, smoothing, length):
    z, soft, g = 2 * torch.randn(3, length) + 30, torch.randn(3, length).softmax(-1), torch.randn(3)
    soft[1] = torch.eye(length)[3]
    soft[2, : length // 2] = 0
    soft[2] *= 1.0009 / soft[2].sum()  # as exact as is asked for
    options = {"reduction": "none", "label_smoothing": smoothing}
    assert_as_float64(lambda z, q: entmax_loss(z, q, alpha, **options), g, z, soft)


@pytest.mark.parametrize(("alpha", "smoothing"), [(1.05, 0.1), (4 / 3, 0.0)])
def test_soft_targets(alpha, smoothing, length):
    check_soft_targets(alpha, smoothing, length)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.25, 1.3, 1.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_soft_targets_of_few_classes(alpha, smoothing):
    check_soft_targets(alpha, smoothing, 5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 5e-3), (torch.float16, 6e-4)])
def test_soft_targets_in_half_precision(dtype, tolerance):
    z, g = 2 * torch.randn(3, 9).to(dtype), torch.tensor([1.0, -0.5, 2.0])
    soft = torch.distributions.Multinomial(64, torch.ones(3, 9)).sample().to(dtype) / 64

    def loss(z, q):
        return entmax_loss(z, q, 1.5, reduction="none")

    assert loss(z, soft).dtype == dtype
    assert_as_float64(loss, g, z, soft, tolerance=tolerance)


def test_soft_targets_with_a_mask_and_weights(length):
    z, soft, weight = torch.randn(3, length, 2), torch.rand(3, length, 2), torch.rand(length)
    mask = torch.rand(3, length, 2) > 0.4
    soft = (soft * mask) / (soft * mask).sum(1, keepdim=True)

    def loss(z, q):
        return entmax_loss(z, q, 1.5, mask=mask, weight=weight.to(z.dtype), label_smoothing=0.2)

    assert_as_float64(loss, torch.ones(()), z, soft)


def test_impossible_soft_targets(length):
    z, soft = torch.randn(4, length), torch.full((4, length), 1 / length)
    z[0, 1], z[1], z[3, length - 1] = -INF, -INF, NAN
    soft[2, :2] = torch.tensor([2 / length, 0.0])
    z[2, 1] = -INF  # where the target is zero

    def all_of(z, q):
        return gradients(lambda z, q: entmax_loss(z, q, 1.5, reduction="none"), torch.ones(4), z, q)

    found, exact = all_of(z, soft), reference(all_of, z, soft)
    assert found[0][:2].tolist() == [INF, INF]
    assert found[0][3].isnan()
    for ours, truth in zip(found, exact, strict=True):
        assert torch.allclose(ours[:3].double(), truth[:3], atol=1e-5)


def test_soft_targets_that_are_all_zero():
    # ``vmap`` hides them from the check that raises where looking at them costs no wait.
    slopes = torch.func.grad_and_value(lambda z, q: entmax_loss(z, q, 1.5), argnums=(0, 1))
    gradients_, losses = torch.func.vmap(slopes)(torch.randn(2, 5), torch.zeros(2, 5))
    assert all(x.isfinite().all() for x in (*gradients_, losses))


def test_soft_targets_need_not_read_logits_where_nothing_has_mass():
    z, soft = torch.randn(2, 1100), torch.randn(2, 1100).softmax(-1)
    z[0, 700] = 30.0  # the first and the last chunk have no mass
    assert_as_float64(lambda z: entmax_loss(z, soft.to(z.dtype), 1.5, reduction="none"), torch.ones(2), z)


def test_soft_targets_under_vmap():
    z, soft = torch.randn(2, 2, 5), torch.randn(2, 5).softmax(-1)  # vmap's axis is the second of z
    slopes = torch.func.grad_and_value(lambda z, q: entmax_loss(z, q, 1.5), argnums=(0, 1))
    found, values = torch.func.vmap(slopes, (1, None))(z, soft)
    for i in range(2):
        truth = gradients(lambda z, q: entmax_loss(z, q, 1.5), torch.ones(()), z[:, i], soft)
        for ours, theirs in zip((values[i], found[0][i], found[1][i]), truth, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_class_losses_have_second_and_forward_derivatives(masked):
    z, dz, y = torch.randn(3, 5), torch.randn(3, 5), torch.tensor([1, 4, 0])
    mask = torch.arange(5) != 2 if masked else None

    def loss(z):
        return entmax_loss(z, y, 1.3, mask=mask, label_smoothing=0.2)

    def curvature(z):
        return torch.func.vjp(torch.func.grad(loss), z)[1](dz.to(z.dtype))

    for f in (curvature, lambda z: torch.func.jvp(loss, (z,), (dz.to(z.dtype),))):
        for ours, truth in zip(f(z), reference(f, z), strict=True):
            assert torch.allclose(ours.double(), truth, atol=1e-5)


def test_soft_targets_have_second_and_forward_derivatives():
    z, soft = torch.randn(2, 5), torch.randn(2, 5).softmax(-1)
    dz, dq = torch.randn(2, 5), torch.randn(2, 5)

    def loss(z, q):
        return entmax_loss(z, q, 1.3)

    def curvature(z, q):
        return torch.func.vjp(torch.func.grad(loss), z, q)[1](dz.to(z.dtype))

    for f in (curvature, lambda z, q: torch.func.jvp(loss, (z, q), (dz.to(z.dtype), dq.to(z.dtype)))):
        for ours, truth in zip(f(z, soft), reference(f, z, soft), strict=True):
            assert torch.allclose(ours.double(), truth, atol=1e-5)


def test_class_weights(length):
    z, weight, y = 2 * torch.randn(3, length), torch.rand(length), torch.randint(length, (3,))
    assert_as_float64(lambda z: entmax_loss(z, y, 1.5, weight=weight.to(z.dtype)), torch.ones(()), z)


def test_impossible_targets(length):
    z = torch.randn(3, length)
    z[0, 1], z[1] = -INF, -INF
    for alpha in (1.5, torch.tensor([[1.5], [1.3], [3.0]]), 3.0):
        losses = entmax_loss(z, torch.tensor([1, 0, 2]), alpha, reduction="none")
        assert torch.equal(losses.isinf(), torch.tensor([True, True, False]))


def test_derivatives_of_every_kind():
    x = torch.randn(2, 5)

    def smooth(x):
        return contmax.entmax(x, 1.5)

    assert torch.allclose(torch.func.jacrev(smooth)(x), torch.func.jacfwd(smooth)(x), atol=1e-6)
    rows = torch.func.vmap(lambda x, a: contmax.entmax(x, a))(x, torch.tensor([1.3, 3.0]))
    assert torch.allclose(rows, contmax.entmax(x, torch.tensor([[1.3], [3.0]])), atol=1e-6)
    y = torch.tensor([1, 3])
    hessian = torch.func.hessian(lambda x: entmax_loss(x, y, 1.5))(x)
    exact = reference(lambda x: torch.func.hessian(lambda x: entmax_loss(x, y, 1.5))(x), x)
    assert torch.allclose(hessian.double(), exact, atol=1e-5)
    losses = torch.func.vmap(lambda x, y: entmax_loss(x, y, 1.5))(x, y)
    assert torch.allclose(losses, entmax_loss(x, y, 1.5, reduction="none"))


@pytest.mark.graph
def test_one_node_in_a_graph():
    x, y = torch.randn(3, 6), torch.tensor([0, 2, 5])

    def both(x):
        return contmax.entmax(x, 1.5).square().sum() + entmax_loss(x, y, 2.0)

    found = gradients(torch.compile(both, fullgraph=True, backend="aot_eager_default_partitioner"), torch.ones(()), x)
    for ours, eager in zip(found, gradients(both, torch.ones(()), x), strict=True):
        assert torch.allclose(ours, eager)

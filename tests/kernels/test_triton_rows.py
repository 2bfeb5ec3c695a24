"""Rows and losses by Triton's kernels, in its interpreter, against float64 torch."""

import pytest
import torch

import contmax
from contmax.kernels import _backends
from contmax.losses import entmax_loss

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")
ALPHAS = [0.6, 1.0001, 1.25, 1.3, 4 / 3, 1.5, 2.0, 20.0]
INF, NAN = float("inf"), float("nan")


def reference(function, *arguments):
    """The same by torch in float64: no kernel takes float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backends.NUMBA, "works", False)
        return function(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments))


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
def length(request, monkeypatch):
    """Rows of both kinds, in small: the limits between them are moved, to slices of two chunks."""
    from contmax.kernels.triton import _class_losses, _launch, _maps

    # Launches are kept by shape, and know the limits.
    kept = (_maps._backward, _class_losses._losses, _class_losses._gradient)
    for launches in kept:
        launches.cache_clear()
    if request.param == "by lists":
        for limit in ("_LONGEST_ON_CHIP", "_LONGEST_WITH_LOGARITHMS", "_LONGEST_BACKWARD"):
            monkeypatch.setattr(_maps, limit, 32)
        monkeypatch.setattr(_class_losses, "_LONGEST_ON_CHIP", 32)
        for module in (_launch, _class_losses):
            monkeypatch.setattr(module, "CHUNK", 32)
        monkeypatch.setattr(_launch, "_SLICES_OF_FEW", (64, 12))
    yield 70
    for launches in kept:
        launches.cache_clear()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_maps(alpha, length):
    x, g = torch.randn(3, length), torch.randn(3, length)
    x[1] *= 0.01  # flat: nearly all have mass, and lists overflow
    x[2, :20] = x[2].max()  # ties
    tolerance = 2e-6 if alpha <= 2 else 2e-5
    assert_as_float64(lambda x: contmax.entmax(x, alpha), g, x, tolerance=tolerance)


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


def test_an_empty_batch():
    assert contmax.entmax(torch.empty(0, 5), 1.5).shape == (0, 5)
    assert entmax_loss(torch.empty(0, 5), torch.empty(0, dtype=torch.long)) == 0


def test_a_score_at_the_threshold_has_no_mass():
    # At α = 2 the gradient jumps where the threshold meets a score: half-precision scores do meet it.
    x = torch.tensor([[2.0, 1.0, 1.0, 0.0], [9.625, 8.75, 8.6875, 0.0], [8.75, 8.375, 8.25, 8.125]])
    support = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    assert torch.equal(contmax.sparsemax(x) > 0, support)


@pytest.mark.parametrize(
    ("alpha", "options"),
    [
        (1.0, {}),
        (1.5, {"label_smoothing": 0.1}),
        (1.5, {"masked": True}),
        (1.0, {"masked": True, "label_smoothing": 0.2}),
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


def test_many_rows_with_alpha_on_both_sides_of_two(monkeypatch):
    # No other test has this shape, for which launches are kept.
    monkeypatch.setattr("contmax.kernels.triton._maps._MANY_ROWS", 2)  # a program looks after sixteen of them
    x, alpha, g = 0.1 * torch.randn(19, 3), torch.full((19, 1), 1.5), torch.randn(19, 3)
    alpha[[0, 15, 18]] = torch.tensor([[3.0], [2.5], [4.0]])
    assert_as_float64(contmax.entmax, g, x, alpha, tolerance=1e-5)


def test_soft_targets_and_class_weights(length):
    z, soft = 2 * torch.randn(3, length), torch.randn(3, length).softmax(-1)
    assert_as_float64(lambda z, t: entmax_loss(z, t, 1.5), torch.ones(()), z, soft)
    weight, y = torch.rand(length), torch.randint(length, (3,))
    assert_as_float64(lambda z: entmax_loss(z, y, 1.5, weight=weight.to(z.dtype)), torch.ones(()), z)


def test_impossible_targets(length):
    z = torch.randn(3, length)
    z[0, 1], z[1] = -INF, -INF
    losses = entmax_loss(z, torch.tensor([1, 0, 2]), 1.5, reduction="none")
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

    found = gradients(torch.compile(both, fullgraph=True, backend="aot_eager"), torch.ones(()), x)
    for ours, eager in zip(found, gradients(both, torch.ones(()), x), strict=True):
        assert torch.allclose(ours, eager)

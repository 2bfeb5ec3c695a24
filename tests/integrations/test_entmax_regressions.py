"""Where the `entmax` package 1.3 breaks, case by case; the drop-in must not."""

import mpmath
import pytest
import torch
from torch.func import jvp, vmap

from contmax.integrations import entmax as ours

LOSS_MODULES = ["SparsemaxLoss", "Entmax15Loss", "SparsemaxBisectLoss", "EntmaxBisectLoss", "NormmaxBisectLoss"]
EVERY_MAP = [
    ("sparsemax", {}),
    ("entmax15", {}),
    ("sparsemax_bisect", {}),
    ("entmax_bisect", {"alpha": 1.3}),
    ("normmax_bisect", {"alpha": 1.7}),
    ("budget_bisect", {"budget": 2}),
]
EVERY_LOSS = [(f"{name}_loss", kwargs) for name, kwargs in EVERY_MAP if "budget" not in kwargs]


def sparse_scores(*shape: int) -> torch.Tensor:
    """Scores that leave zeros in every map, float64 and differentiable."""
    return (3 * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
def test_double_backward_where_p_has_zeros(name, kwargs):
    scores = sparse_scores(4, 6)
    function = getattr(ours, name)
    assert (function(scores, **kwargs) == 0).any()
    assert torch.autograd.gradgradcheck(lambda x: function(x, **kwargs), (scores,), fast_mode=True)


@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
def test_a_row_of_minus_infinity_gives_zeros_with_zero_gradient(name, kwargs):
    scores = torch.tensor([[0.3, -torch.inf, 0.1], [-torch.inf] * 3], requires_grad=True)
    p = getattr(ours, name)(scores, **kwargs)
    p.square().sum().backward()
    assert p[0, 1] == 0
    assert p[1].eq(0).all()
    assert scores.grad.isfinite().all()
    assert scores.grad[1].eq(0).all()


@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_the_rounded_float32_result(name, kwargs, dtype):
    function = getattr(ours, name)
    scores = (0.3 * torch.randn(16, 300)).to(dtype)
    p = function(scores, **kwargs)
    assert p.dtype == dtype
    torch.testing.assert_close(p, function(scores.float(), **kwargs).to(dtype), rtol=0, atol=0)
    # Each of 300 entries is rounded once; their sum is then off by half a unit of a typical entry, not by 0.22.
    total = kwargs.get("budget", 1)
    assert (p.double().sum(-1) - total).abs().max() < total * torch.finfo(dtype).eps


@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
def test_scores_around_a_million_in_float32(name, kwargs):
    function = getattr(ours, name)
    scores = (torch.randn(20, 8) + 1e6).float()
    torch.testing.assert_close(
        function(scores, **kwargs).double(), function(scores.double(), **kwargs), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("alpha", [1, 1.0, torch.tensor(1.0), torch.ones(5, 1)])
def test_alpha_one_is_softmax(alpha):
    scores = torch.randn(5, 7)
    torch.testing.assert_close(ours.entmax_bisect(scores, alpha), scores.softmax(-1))
    target = torch.randint(0, 7, (5,))
    cross_entropy = torch.nn.functional.cross_entropy(scores, target, reduction="none")
    torch.testing.assert_close(ours.entmax_bisect_loss(scores, target, alpha), cross_entropy)


def entmax_by_mpmath(scores: list[float], alpha: mpmath.mpf) -> list[mpmath.mpf]:
    """p = [1 + ε(x − A)]^{1/ε} to 30 digits, for ε so small that nothing is cut off."""
    epsilon = alpha - 1

    def mass(partition):
        return mpmath.fsum((1 + epsilon * (x - partition)) ** (1 / epsilon) for x in scores)

    start = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in scores))
    partition = mpmath.findroot(lambda a: mass(a) - 1, start)
    return [(1 + epsilon * (x - partition)) ** (1 / epsilon) for x in scores]


def test_alpha_gradient_next_to_one_in_float32():
    torch.manual_seed(3)
    scores = torch.randn(10)
    alpha = torch.tensor(1.0001, requires_grad=True)
    (gradient,) = torch.autograd.grad(ours.entmax_bisect(scores, alpha)[0], alpha)
    with mpmath.workdps(30):
        values = [mpmath.mpf(x) for x in scores.tolist()]
        true = mpmath.diff(lambda a: entmax_by_mpmath(values, a)[0], mpmath.mpf(alpha.item()))
    # 0.1194; the original says −0.575.
    assert gradient.item() == pytest.approx(float(true), rel=1e-5)


@pytest.mark.parametrize(("name", "kwargs"), EVERY_LOSS)
class TestLosses:
    def test_minus_infinity_beside_the_target(self, name, kwargs):
        function = getattr(ours, name)
        scores = torch.tensor([[0.5, -torch.inf, 0.2, -0.1]], requires_grad=True)
        loss = function(scores, torch.tensor([2]), **kwargs)
        loss.sum().backward()
        without = function(scores.detach()[:, [0, 2, 3]], torch.tensor([1]), **kwargs)
        torch.testing.assert_close(loss.detach(), without)
        assert scores.grad.isfinite().all()
        assert scores.grad[0, 1] == 0

    def test_ignored_label(self, name, kwargs):
        function = getattr(ours, name)
        scores = torch.randn(3, 5, requires_grad=True)
        loss = function(scores, torch.tensor([1, -100, 4]), **kwargs)
        (gradient,) = torch.autograd.grad(loss.sum(), scores)
        assert loss[1] == 0
        assert gradient[1].eq(0).all()
        torch.testing.assert_close(loss[[0, 2]], function(scores[[0, 2]], torch.tensor([1, 4]), **kwargs))

    def test_soft_targets(self, name, kwargs):
        function = getattr(ours, name)
        scores = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        labels = torch.randint(0, 5, (4,))
        one_hot = torch.nn.functional.one_hot(labels, 5).double()
        torch.testing.assert_close(function(scores, one_hot, **kwargs), function(scores, labels, **kwargs))
        # A Fenchel–Young loss is zero at its own prediction, and its gradient is prediction − target.
        prediction = getattr(ours, name.removesuffix("_loss"))
        p = prediction(scores.detach(), **kwargs)
        torch.testing.assert_close(function(scores, p, **kwargs), torch.zeros(4).double(), atol=1e-14, rtol=0)
        target = torch.rand(4, 5, dtype=torch.float64).softmax(-1)
        (gradient,) = torch.autograd.grad(function(scores, target, **kwargs).sum(), scores)
        torch.testing.assert_close(gradient, p - target)

    def test_vmap_and_second_order(self, name, kwargs):
        function = getattr(ours, name)
        scores, target = sparse_scores(3, 4, 6), torch.randint(0, 6, (3, 4))
        batched = vmap(lambda x, y: function(x, y, **kwargs))(scores, target)
        torch.testing.assert_close(batched[1], function(scores[1], target[1], **kwargs))
        assert torch.autograd.gradgradcheck(lambda x: function(x, target[0], **kwargs), (scores[0],), fast_mode=True)


@pytest.mark.parametrize("name", ["entmax_bisect_loss", "normmax_bisect_loss"])
@pytest.mark.parametrize("shape", [(), (4, 1)])
def test_losses_differentiate_in_alpha(name, shape):
    scores, target = torch.randn(4, 5, dtype=torch.float64), torch.randint(0, 5, (4,))
    alpha = (1.2 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: getattr(ours, name)(scores, target, a), (alpha,))


@pytest.mark.parametrize("module", LOSS_MODULES)
def test_loss_modules_with_only_ignored_labels_give_zero(module):
    scores = torch.randn(3, 5, requires_grad=True)
    loss = getattr(ours, module)(ignore_index=-1)(scores, torch.full((3,), -1))
    loss.backward()
    assert loss == 0
    assert scores.grad.eq(0).all()


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_k_with_a_negative_dim(name):
    # Wide supports: the original, having found more than k positive entries, permutes to an axis that is not there.
    scores = 0.01 * torch.randn(3, 8, 4)
    function = getattr(ours, name)
    torch.testing.assert_close(function(scores, dim=-2, k=2), function(scores, dim=1))


@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
def test_vmap_and_forward_mode(name, kwargs):
    scores = sparse_scores(3, 4, 6).detach()
    function = getattr(ours, name)

    def batched(x):
        return vmap(lambda row: function(row, **kwargs))(x)

    torch.testing.assert_close(batched(scores), function(scores, **kwargs))
    tangent = torch.randn_like(scores)
    # Each map is the gradient of a convex function, its Jacobian symmetric: both modes give the same product.
    p, forward = jvp(batched, (scores,), (tangent,))
    _, reverse = torch.func.vjp(batched, scores)
    torch.testing.assert_close(p, function(scores, **kwargs))
    torch.testing.assert_close(forward, reverse(tangent)[0])


@pytest.mark.graph
@pytest.mark.parametrize(("name", "kwargs"), EVERY_MAP)
def test_maps_compile_without_graph_breaks(name, kwargs):
    scores = torch.randn(4, 6, requires_grad=True)
    function = getattr(ours, name)
    compiled = torch.compile(lambda x: function(x, **kwargs), fullgraph=True, backend="aot_eager_default_partitioner")
    cotangent = torch.randn(4, 6)
    for version in (function(scores, **kwargs), compiled(scores)):
        torch.testing.assert_close(version, function(scores, **kwargs))
        (gradient,) = torch.autograd.grad(version, scores, cotangent)
        (expected,) = torch.autograd.grad(function(scores, **kwargs), scores, cotangent)
        torch.testing.assert_close(gradient, expected)


@pytest.mark.graph
@pytest.mark.parametrize("name", LOSS_MODULES)
def test_loss_modules_compile_without_graph_breaks(name):
    scores, target = torch.randn(4, 6, requires_grad=True), torch.tensor([1, 2, -100, 0])
    module = getattr(ours, name)()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager_default_partitioner")(scores, target)
    torch.testing.assert_close(compiled, module(scores, target))
    (gradient,) = torch.autograd.grad(compiled, scores)
    (expected,) = torch.autograd.grad(module(scores, target), scores)
    torch.testing.assert_close(gradient, expected)

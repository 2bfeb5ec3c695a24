"""The loss of a linear layer by blocks of its logits: the numbers of the layer and the loss, one after the other."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contmax.losses import entmax_loss, linear_entmax_loss

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
ALPHAS = [0.7, 1.0, 1.2, 1.5, 2.0, 3.0]


def layer(tokens=70, channels=8, classes=300, dtype=F64, size=1.0, biased=True):
    """hidden, weight, bias, target: several blocks each way, the last ones shorter."""
    hidden = torch.randn(tokens, channels, dtype=F64)
    weight = size * torch.randn(classes, channels, dtype=F64)
    bias = torch.randn(classes, dtype=F64)
    tensors = [x.to(dtype).requires_grad_() for x in (hidden, weight, bias)]
    target = torch.randint(0, classes, (tokens,))
    target[::5] = -100
    return *(tensors if biased else [*tensors[:2], None]), target


def two_steps(hidden, weight, target, alpha=1.5, *, bias=None, **options):
    return entmax_loss(F.linear(hidden, weight, bias), target, alpha, dim=-1, **options)


def value_and_gradients(function, hidden, weight, bias, target, alpha=1.5, **options):
    loss = function(hidden, weight, target, alpha, bias=bias, **options)
    live = [x for x in (hidden, weight, bias, alpha) if isinstance(x, torch.Tensor)]
    cotangent = torch.linspace(-1.0, 2.0, loss.numel(), dtype=F64).reshape(loss.shape).to(loss.dtype)
    return loss, *torch.autograd.grad(loss, live, cotangent)


def assert_same(arguments, alpha=1.5, rtol=1e-12, **options):
    ours = value_and_gradients(linear_entmax_loss, *arguments, alpha, **options)
    theirs = value_and_gradients(two_steps, *arguments, alpha, **options)
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == expected.dtype
        largest = max([1.0, *expected.detach().abs().flatten().tolist()])
        torch.testing.assert_close(got, expected, rtol=rtol, atol=rtol * largest)


def test_the_call_of_a_language_model():
    hidden = torch.randn(2, 40, 16, requires_grad=True)
    head = torch.nn.Linear(16, 500)
    target = torch.randint(0, 500, (2, 40))
    loss = linear_entmax_loss(hidden, head.weight, target, bias=head.bias)
    loss.backward()
    expected = two_steps(hidden, head.weight, target, bias=head.bias)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, torch.autograd.grad(expected, hidden)[0])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_float64(alpha, reduction):
    assert_same(layer(), alpha, reduction=reduction)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_float32(alpha):
    # For α > 2 a small probability is far more sensitive than its logit.
    assert_same(layer(dtype=F32), alpha, rtol=2e-5 if alpha <= 2 else 2e-3)


def test_alpha_one_is_cross_entropy():
    hidden, weight, bias, target = layer()
    loss = linear_entmax_loss(hidden, weight, target, 1.0, bias=bias)
    torch.testing.assert_close(loss, F.cross_entropy(F.linear(hidden, weight, bias), target))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 2), (5, 4, 127), (33, 3, 129), (200, 2, 50), (0, 3, 7), (2, 3, 1)])
def test_sizes_that_do_not_divide(shape):
    tokens, channels, classes = shape
    hidden, weight, bias, target = layer(tokens, channels, classes)
    for alpha in (1.5, 3.0):
        assert_same((hidden, weight, bias, target), alpha, reduction="none")
        assert_same((hidden, weight, None, target), alpha, reduction="mean")


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing(alpha, smoothing):
    assert_same(layer(), alpha, label_smoothing=smoothing)


def test_another_ignore_index():
    assert_same((*layer()[:3], torch.arange(70)), ignore_index=7)


def test_where_nothing_counts_the_loss_is_zero():
    hidden, weight, bias, target = layer()
    results = value_and_gradients(linear_entmax_loss, hidden, weight, bias, torch.full_like(target, -100))
    assert all(not x.any() for x in results)


def test_ignored_tokens_may_hold_infinities_in_their_logits():
    hidden, weight, bias, target = layer()
    expected = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target)
    with torch.no_grad():
        hidden[0] = 1e308
    assert (hidden[0] @ weight.T).isinf().any()
    found = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target)
    assert not found[1][0].any()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5])
def test_tokens_left_out_afterwards_may_hold_infinities_in_their_logits(alpha):
    """A token that the caller leaves out of the losses has a cotangent of 0, and p̂ is NaN."""
    hidden, weight, bias, target = layer()
    kept = torch.arange(len(target)) != 1
    with torch.no_grad():
        hidden[1] = 1e308
    logits = (hidden[1] @ weight.T).detach()
    assert logits.isinf().any()
    losses = linear_entmax_loss(hidden, weight, target, alpha, bias=bias, reduction="none")
    found = torch.autograd.grad(torch.where(kept, losses, 0).sum(), (weight, bias))
    alone = linear_entmax_loss(hidden[kept], weight, target[kept], alpha, bias=bias, reduction="sum")
    for x, y in zip(found, torch.autograd.grad(alone, (weight, bias)), strict=True):
        torch.testing.assert_close(x, y)


def test_classes_that_are_ruled_out():
    hidden, weight, bias, target = layer()
    with torch.no_grad():
        bias[::3] = -torch.inf
    target = torch.where(target < 0, target, target // 3 * 3 + 1).clamp(max=299)
    assert_same((hidden, weight, bias, target))
    loss = linear_entmax_loss(hidden, weight, target - 1, bias=bias, reduction="none", ignore_index=-101)
    assert loss[1:5].isinf().all()


def test_a_row_of_nothing_is_infinite_without_nan():
    hidden, weight, bias, target = layer(3)
    with torch.no_grad():
        bias.fill_(-torch.inf)
    loss, *gradients = value_and_gradients(linear_entmax_loss, hidden, weight, bias, target, reduction="none")
    assert torch.equal(loss.isinf(), target >= 0)
    assert all(not g.isnan().any() for g in gradients)


@pytest.mark.parametrize("alpha", [torch.tensor(1.4, dtype=F64), torch.linspace(0.8, 2.6, 70, dtype=F64)[:, None]])
def test_a_learned_alpha(alpha):
    assert_same(layer(), alpha.requires_grad_())


@pytest.mark.parametrize("alpha", [1.5, 2.0, 2.5])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_half_precision_is_as_accurate_as_two_steps(dtype, alpha):
    # Many tokens share few classes, so that sums over blocks are long.
    arguments = layer(700, 32, 20, dtype, size=0.3)
    wide = [x.detach().double().requires_grad_() for x in arguments[:3]]
    exact = value_and_gradients(two_steps, *wide, arguments[3], alpha)
    ours = value_and_gradients(linear_entmax_loss, *arguments, alpha)
    theirs = value_and_gradients(two_steps, *arguments, alpha)
    for got, plain, expected in zip(ours, theirs, exact, strict=True):
        assert got.dtype == dtype
        error, allowed = ((x.double() - expected).norm() for x in (got, plain))
        assert error <= 1.02 * allowed + 1e-3 * torch.finfo(dtype).eps * expected.norm()


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_autocast(alpha):
    arguments = layer(dtype=F32)
    with torch.autocast("cpu", dtype=BF16):
        ours = value_and_gradients(linear_entmax_loss, *arguments, alpha)
        theirs = value_and_gradients(two_steps, *arguments, alpha)
    for got, expected in zip(ours, theirs, strict=True):
        assert got.dtype == expected.dtype == F32
        torch.testing.assert_close(got, expected, rtol=0.1, atol=0.02 * float(expected.detach().abs().max()))


def require_gradients_of_single_inputs(hidden, weight, bias, target):
    expected = value_and_gradients(two_steps, hidden, weight, bias, target)[1:]
    for live in range(3):
        tensors = [x.detach().requires_grad_(i == live) for i, x in enumerate((hidden, weight, bias))]
        loss = -linear_entmax_loss(tensors[0], tensors[1], target, bias=tensors[2])
        torch.testing.assert_close(torch.autograd.grad(loss, tensors[live])[0], expected[live])
    assert not linear_entmax_loss(hidden.detach(), weight.detach(), target).requires_grad


def test_only_what_needs_a_gradient_gets_one():
    require_gradients_of_single_inputs(*layer())


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_second_derivatives(alpha):
    hidden, weight, bias, target = layer(6, 3, 5)
    results = []
    for function in (linear_entmax_loss, two_steps):
        loss = function(hidden, weight, target, alpha, bias=bias)
        gradients = torch.autograd.grad(loss, (hidden, weight, bias), create_graph=True)
        results.append(torch.autograd.grad(sum(g.square().sum() for g in gradients), (hidden, weight, bias)))
    torch.testing.assert_close(*results)


def test_transforms_of_torch_func():
    hidden, weight, bias, target = (x.detach() for x in layer(6, 3, 5))
    for function in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        ours = function(lambda h: linear_entmax_loss(h, weight, target, bias=bias))(hidden)
        torch.testing.assert_close(ours, function(lambda h: two_steps(h, weight, target, bias=bias))(hidden))
    each = torch.func.vmap(lambda h, y: linear_entmax_loss(h, weight, y, reduction="sum"))(hidden, target)
    torch.testing.assert_close(each, two_steps(hidden, weight, target, reduction="none"))


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_vmap_of_a_function_that_closes_over_the_layer(alpha):
    hidden, weight, bias, target = layer(6, 3, 5)
    loss = linear_entmax_loss(hidden, weight, target, alpha, bias=bias)
    factors = torch.tensor([1.0, -2.0], dtype=F64)
    each = torch.func.vmap(lambda c: c * linear_entmax_loss(hidden, weight, target, alpha, bias=bias))(factors)
    torch.testing.assert_close(each, factors * loss)
    gradients = torch.autograd.grad(each[1], (hidden, weight, bias))
    torch.testing.assert_close(gradients, torch.autograd.grad(-2 * loss, (hidden, weight, bias)))


def tied():
    """Hidden vectors that were computed from the weight of the layer, and the weight."""
    _, weight, _, target = layer(6, 3, 5)
    target = target.clamp(min=0)
    return weight[target].tanh(), weight, target


def test_a_tied_weight_counts_once_where_gradients_are_differentiable():
    hidden, weight, target = tied()
    expected = torch.autograd.grad(two_steps(hidden, weight, target), weight, create_graph=True)[0]
    slope = torch.autograd.grad(linear_entmax_loss(hidden, weight, target), weight, create_graph=True)[0]
    torch.testing.assert_close(slope, expected)
    curvature = torch.autograd.grad(slope.square().sum(), weight, retain_graph=True)
    torch.testing.assert_close(curvature, torch.autograd.grad(expected.square().sum(), weight))


@pytest.mark.parametrize("batched", ["torch.vmap", "torch.autograd.grad"])
def test_vmap_of_cotangents(batched):
    hidden, weight, target = tied()
    losses = linear_entmax_loss(hidden, weight, target, reduction="none")

    def gradient(cotangent, **options):
        return torch.autograd.grad(losses, weight, cotangent, retain_graph=True, **options)[0]

    cotangents = torch.randn(2, 6, dtype=F64)
    every = torch.vmap(gradient)(cotangents) if batched == "torch.vmap" else gradient(cotangents, is_grads_batched=True)
    torch.testing.assert_close(every, torch.stack([gradient(c) for c in cotangents]))


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_dual_numbers(alpha):
    hidden, weight, bias, target = layer(6, 3, 5)
    moved, turned = torch.randn_like(hidden), torch.randn_like(weight)
    loss = two_steps(hidden, weight, target, alpha, bias=bias)
    slopes = torch.autograd.grad(loss, (hidden, weight))
    with forward_ad.dual_level():
        duals = forward_ad.make_dual(hidden, moved), forward_ad.make_dual(weight, turned)
        loss = linear_entmax_loss(*duals, target, alpha, bias=bias)
        tangent = forward_ad.unpack_dual(loss).tangent
    torch.testing.assert_close(tangent, (slopes[0] * moved).sum() + (slopes[1] * turned).sum())


class Largest(TorchDispatchMode):
    """The number of elements of the largest storage that an operation makes."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_the_logits_are_never_all_in_memory(alpha, monkeypatch):
    monkeypatch.setattr("contmax.losses._linear._FEWEST_TOKENS", 8)
    tokens, classes = 192, 1280
    arguments = layer(tokens, 4, classes, F32)
    with Largest() as made:
        value_and_gradients(linear_entmax_loss, *arguments, alpha)
    assert made.bytes <= tokens * classes * 4 / 8


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [1.5, 3.0])
def test_compiles_whole(alpha):
    torch._dynamo.reset()
    function = torch.compile(linear_entmax_loss, fullgraph=True, backend="aot_eager_default_partitioner")
    arguments = layer()
    ours = value_and_gradients(function, *arguments, alpha)
    torch.testing.assert_close(ours, value_and_gradients(linear_entmax_loss, *arguments, alpha))


@pytest.mark.graph
def test_no_tensor_of_a_compiled_graph_holds_all_logits():
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    sizes = []

    def record(graph, example_inputs):
        values = [node.meta.get("val") for node in graph.graph.nodes]
        sizes.extend(x.numel() for x in tree_leaves(values) if isinstance(x, torch.Tensor))
        return make_boxed_func(graph.forward)

    function = torch.compile(linear_entmax_loss, fullgraph=True, backend=aot_autograd(fw_compiler=record))
    value_and_gradients(function, *layer())
    assert 300 * 8 <= max(sizes) < 70 * 300


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.randn(4, 5)}, "do not fit each other"),
        ({"weight": torch.randn(7, 3, 1)}, "do not fit each other"),
        ({"weight": torch.randn(0, 3)}, "no classes"),
        ({"bias": torch.randn(3)}, "one entry per class"),
        ({"target": torch.zeros(3, dtype=torch.long)}, r"pass shape \(4,\)"),
        ({"target": torch.full((4,), 7)}, "must be in"),
        ({"target": torch.rand(4)}, "class ids"),
        ({"alpha": 0.0}, "positive"),
        ({"alpha": torch.ones(4)}, r"logits|scores"),
        ({"label_smoothing": 1.5}, "label_smoothing"),
        ({"reduction": "max"}, "reduction"),
    ],
)
def test_messages(change, message):
    good = {"hidden": torch.randn(4, 3), "weight": torch.randn(7, 3), "target": torch.zeros(4, dtype=torch.long)}
    with pytest.raises((ValueError, TypeError), match=message):
        linear_entmax_loss(**{**good, **change})

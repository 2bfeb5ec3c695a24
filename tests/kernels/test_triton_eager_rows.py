"""The eager fast path (one α, no mask): its results are those of the general path, and it takes nothing else."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import contmax
from contmax.maps import _entmax

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors")


@pytest.fixture
def taken(monkeypatch):
    """The calls that went this way."""
    calls, applied = [], _entmax._eager_apply
    monkeypatch.setattr(_entmax, "_eager_apply", lambda *arguments: calls.append(arguments) or applied(*arguments))
    return calls


def general(x, alpha=1.5):
    """The same map by the other way, which an axis that counts from the front takes."""
    return contmax.entmax(x, alpha, dim=x.dim() - 1)


def rows(requires_grad=True):
    return torch.randn(3, 9).requires_grad_(requires_grad)


def test_the_commonest_calls_are_taken(taken):
    contmax.entmax(rows())
    contmax.sparsemax(torch.nn.Parameter(rows()))
    contmax.entmax(rows()[:, 2:7], 1.3)
    contmax.entmax(rows()[0].half())
    assert len(taken) == 4


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((1.0,), {}),
        ((torch.tensor(1.5),), {}),
        ((1.5, 0), {}),
        ((1.5,), {"mask": torch.ones(9, dtype=torch.bool)}),
        ((1.5,), {"temperature": 2.0}),
        ((1.5,), {"temperature": torch.tensor(1.0)}),
        ((2.5,), {}),
    ],
)
def test_all_others_are_not(taken, arguments, options):
    contmax.entmax(rows(), *arguments, **options)
    contmax.entmax(rows().mT)  # neighbours that are apart
    assert not taken


def test_p_that_hooks_bring_back_as_another():
    x, g = rows(), torch.randn(3, 9)
    (expected,) = torch.autograd.grad(general(x), x, g)
    torch.autograd.grad(contmax.entmax(x), x, g)  # from now on the launch is ready, for p of another dtype
    with torch.autograd.graph.saved_tensors_hooks(lambda p: p.half(), lambda p: p):
        p = contmax.entmax(x)
    (grad,) = torch.autograd.grad(p, x, g)
    torch.testing.assert_close(grad, expected, atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    ("scores", "alpha", "error"),
    [
        ([1.0], 1.5, TypeError),
        (torch.ones(3, dtype=torch.int64), 1.5, TypeError),
        (torch.tensor(1.0), 1.5, ValueError),
        (torch.ones(3, 0), 1.5, ValueError),
        (torch.ones(3), 0.0, ValueError),
        (torch.ones(3), float("inf"), ValueError),
        (torch.ones(3), float("nan"), ValueError),
    ],
)
def test_what_is_wrong_is_still_refused(taken, scores, alpha, error):
    with pytest.raises(error):
        contmax.entmax(scores, alpha)
    assert not taken


def test_an_axis_is_a_whole_number(taken):
    with pytest.raises(TypeError):
        contmax.entmax(rows(), 1.5, dim=-1.0)
    assert not taken


def test_no_other_kind_of_tensor_is_taken(taken):
    class Mine(torch.Tensor):
        pass

    assert type(contmax.entmax(rows(False).as_subclass(Mine))) is Mine
    torch.vmap(contmax.entmax)(rows())
    torch.func.grad(lambda x: contmax.entmax(x).square().sum())(rows())
    x = rows()
    torch.vmap(lambda y: y * contmax.entmax(x))(torch.ones(2))  # scores that are not vmapped, in a vmap
    assert not taken


def test_a_tensor_that_torch_func_left_behind():
    left = []
    torch.func.grad(lambda x: left.append(x) or x.sum())(rows(False))
    assert torch.equal(contmax.entmax(left[0]), contmax.entmax(left[0].clone()))


@pytest.mark.parametrize(
    "x",
    [torch._neg_view(torch.randn(4, 20))[:, :7], torch.randn(6, 1, dtype=torch.complex64).conj().imag],
)
def test_parts_of_what_torch_negates_later(x):
    # A copy of them lies in another way.
    assert x.is_neg()
    torch.testing.assert_close(contmax.entmax(x), contmax.entmax(x.resolve_neg().clone()), rtol=0, atol=0)


def test_what_fails_for_another_reason_fails(monkeypatch):
    def fail(*_):
        raise RuntimeError("out of memory")

    x, g = rows(), torch.randn(3, 9)
    p = contmax.entmax(x)
    monkeypatch.setattr(torch, "empty_like", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        contmax.entmax(x)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.autograd.grad(p, x, g)


@pytest.mark.parametrize("alpha", [0.7, 1.3, 1.5])
@pytest.mark.parametrize("kind", ["rows", "parts of rows", "negated later"])
def test_derivatives_of_every_kind_are_those_of_the_other_way(taken, alpha, kind):
    x = {"rows": rows(), "parts of rows": torch.randn(3, 18)[:, 4:13], "negated later": torch._neg_view(rows())}[kind]
    x = x.detach().requires_grad_()
    g, move = torch.randn(5, 3, 9), torch.randn(3, 9)
    found = []
    for function in (lambda x: contmax.entmax(x, alpha), lambda x: general(x, alpha)):
        p = function(x)
        first = torch.autograd.grad(p, x, g[0], create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), x, retain_graph=True)[0]
        plain = torch.autograd.grad(p, x, g[0], retain_graph=True)[0]
        turned = torch.autograd.grad(p, x, torch.ones(()).expand(3, 9).cumsum(1).mT.contiguous().mT, retain_graph=True)[
            0
        ]
        many = torch.autograd.grad(p, x, g, is_grads_batched=True)[0]
        with forward_ad.dual_level():
            along = forward_ad.unpack_dual(function(forward_ad.make_dual(x.detach(), move))).tangent
        found.append((p, first, second, plain, turned, many, along))
    assert len(taken) == 2
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    torch.testing.assert_close(found[0][1], found[0][3], rtol=1e-5, atol=1e-6)


def test_many_cotangents_inside_a_checkpoint(taken):
    """Which hands out what was saved only once."""
    x, g = rows(), torch.randn(4, 3, 9)
    p = checkpoint(contmax.entmax, x, use_reentrant=False)
    many = torch.autograd.grad(p, x, g, is_grads_batched=True)[0]
    torch.testing.assert_close(many, torch.autograd.grad(general(x), x, g, is_grads_batched=True)[0])
    assert len(taken) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_asks_for_float32(taken, dtype):
    x = rows().detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype):
        p = contmax.entmax(x)
    assert p.dtype == torch.float32
    assert torch.autograd.grad(p[:, 0].sum(), x)[0].dtype == dtype
    assert contmax.entmax(x).dtype == dtype
    assert len(taken) == 2


@pytest.mark.graph
def test_an_export_leaves_nothing_of_this_way_behind(taken):
    constant = rows(requires_grad=False)
    contmax.entmax(constant)  # Triton is known to work

    class Constant(torch.nn.Module):
        def forward(self, x):
            return x * contmax.entmax(constant)

    exported = torch.export.export(Constant(), (constant,), strict=False)
    assert len(taken) == 1
    assert not any("empty_like" in str(node.target) for node in exported.graph.nodes)

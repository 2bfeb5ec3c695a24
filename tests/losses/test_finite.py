"""Fenchel–Young losses on finite sets: against cross-entropy, the definition, and the contracts of the library."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacrev, vmap
from torch.nn import functional as F

import contmax
from contmax.losses import entmax_loss, sparsemax_loss

F64 = torch.float64
ALPHAS = [1.0, 1.0001, 1.2, 1.5, 2.0, 3.0]


def definition(z, y, alpha, dim=-1):
    """Ω*(z) + Ω(y) − ⟨z, y⟩, with Ω* by its maximiser."""
    p = contmax.entmax(z, alpha, dim)
    omega = contmax.deformed.tsallis_negentropy
    return ((p - y) * z).sum(dim) - omega(p, alpha, dim) + omega(y, alpha, dim)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_alpha_one_equals_cross_entropy(reduction, smoothing):
    for shape, target_shape in (((7,), ()), ((5, 7), (5,)), ((3, 7, 2, 4), (3, 2, 4))):
        z = torch.randn(shape, dtype=F64, requires_grad=True)
        y = torch.randint(0, 7, target_shape)
        if y.dim() > 1:
            y[0, 0] = -100
        ours = entmax_loss(z, y, 1.0, label_smoothing=smoothing, reduction=reduction)
        torchs = F.cross_entropy(z, y, label_smoothing=smoothing, reduction=reduction)
        torch.testing.assert_close(ours, torchs)
        torch.testing.assert_close(
            torch.autograd.grad(ours.sum(), z), torch.autograd.grad(torchs.sum(), z), rtol=1e-9, atol=1e-12
        )


def test_weights_and_ignored_examples_equal_cross_entropy():
    z = torch.randn(6, 4, dtype=F64)
    y = torch.tensor([0, 1, -100, 3, 3, 2])
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=F64)
    for reduction in ("none", "sum", "mean"):
        torch.testing.assert_close(
            entmax_loss(z, y, 1.0, weight=weight, reduction=reduction),
            F.cross_entropy(z, y, weight=weight, reduction=reduction),
        )
    torch.testing.assert_close(entmax_loss(z, y % 4, 1.0, ignore_index=3), F.cross_entropy(z, y % 4, ignore_index=3))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_definition_for_class_ids_and_soft_targets(alpha):
    z = 2 * torch.randn(8, 5, dtype=F64)
    y = torch.randint(0, 5, (8,))
    soft = torch.distributions.Dirichlet(torch.ones(5, dtype=F64)).sample((8,))
    one_hot = F.one_hot(y, 5).to(F64)
    atol = 1e-11 if alpha != 1.0001 else 1e-9  # the definition itself cancels near α = 1
    torch.testing.assert_close(
        entmax_loss(z, y, alpha, reduction="none"), definition(z, one_hot, alpha), rtol=0, atol=atol
    )
    torch.testing.assert_close(
        entmax_loss(z, soft, alpha, reduction="none"), definition(z, soft, alpha), rtol=0, atol=atol
    )
    torch.testing.assert_close(
        entmax_loss(z, one_hot, alpha, reduction="none"), entmax_loss(z, y, alpha, reduction="none")
    )


@pytest.mark.parametrize("alpha", ALPHAS)
def test_zero_exactly_at_the_target_and_positive_elsewhere(alpha):
    z = 2 * torch.randn(50, 6, dtype=F64)
    p = contmax.entmax(z, alpha)
    assert entmax_loss(z, p, alpha, reduction="none").abs().max() <= 1e-12
    other = contmax.entmax(z + 0.1 * torch.randn_like(z), alpha)
    losses = entmax_loss(z, other, alpha, reduction="none")
    differs = (other - p).abs().sum(-1) > 1e-3
    assert (losses >= 0).all()
    assert (losses[differs] > 0).all()


def test_alpha_one_soft_targets_are_kl():
    z = torch.randn(4, 5, dtype=F64)
    y = torch.softmax(torch.randn(4, 5, dtype=F64), -1)
    expected = F.kl_div(torch.log_softmax(z, -1), y, reduction="none").sum(-1)
    torch.testing.assert_close(entmax_loss(z, y, 1.0, reduction="none"), expected)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0])
def test_a_margin_makes_the_loss_exactly_zero(alpha):
    z = torch.tensor([[1 / (alpha - 1), 0.0, -1.0]])
    assert entmax_loss(z, torch.tensor([0]), alpha).item() == 0.0


@pytest.mark.parametrize("alpha", ALPHAS)
def test_label_smoothing_is_a_mixture_of_losses(alpha):
    z = torch.randn(3, 5, dtype=F64)
    y = torch.tensor([0, 2, 4])
    every = torch.stack([entmax_loss(z, torch.full((3,), c), alpha, reduction="none") for c in range(5)])
    expected = 0.8 * entmax_loss(z, y, alpha, reduction="none") + 0.2 * every.mean(0)
    torch.testing.assert_close(entmax_loss(z, y, alpha, label_smoothing=0.2, reduction="none"), expected)
    soft = F.one_hot(y, 5).to(F64)
    torch.testing.assert_close(entmax_loss(z, soft, alpha, label_smoothing=0.2, reduction="none"), expected)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_smoothing_keeps_the_digits_of_float64(masked, soft):
    z, mask = torch.randn(6, 7, dtype=torch.float64).requires_grad_(), torch.tensor([True] * 6 + [False])
    ids = torch.arange(6)
    hot = F.one_hot(ids, 7).double()
    every = z if not masked else z[:, :6]
    options = {"label_smoothing": 0.2, "reduction": "none", "mask": mask if masked else None}
    loss = entmax_loss(z, hot if soft else ids, 1.5, **options)
    bare = entmax_loss(every, ids, 1.5, reduction="none") + every.gather(1, ids[:, None]).squeeze(1)
    # Ω*(z) less the score of the target, and of every class that the mask allows.
    expected = bare - 0.8 * every.gather(1, ids[:, None]).squeeze(1) - 0.2 * every.mean(1)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-13)
    found, wanted = (torch.autograd.grad(x.sum(), z, retain_graph=True)[0] for x in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-13)


def test_smoothing_spreads_over_the_classes_the_mask_allows():
    z = torch.randn(2, 4, dtype=F64)
    mask = torch.tensor([True, True, False, True])
    inside = entmax_loss(z[:, mask], torch.tensor([0, 2]), 1.5, label_smoothing=0.3)
    torch.testing.assert_close(entmax_loss(z, torch.tensor([0, 3]), 1.5, label_smoothing=0.3, mask=mask), inside)


def test_soft_weights():
    z = torch.randn(3, 4, dtype=F64)
    y = torch.softmax(torch.randn(3, 4, dtype=F64), -1)
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=F64)
    each = entmax_loss(z, y, reduction="none")
    per_example = y @ weight
    torch.testing.assert_close(entmax_loss(z, y, weight=weight), (each * per_example).sum() / per_example.sum())


@pytest.mark.parametrize("alpha", ALPHAS)
def test_derivatives_of_first_and_second_order(alpha):
    z = (1.5 * torch.randn(4, 5, dtype=F64)).requires_grad_()
    index = torch.full((4, 1), alpha, dtype=F64, requires_grad=True)
    y = torch.tensor([0, 3, -100, 2])
    free = torch.randn(4, 5, dtype=F64, requires_grad=True)

    def hard(z, index):
        return entmax_loss(z, y, index, label_smoothing=0.1, reduction="none")

    def soft(z, index, free):
        return entmax_loss(z, torch.softmax(free, -1), index, reduction="none")

    assert gradcheck(hard, (z, index), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(hard, (z, index), rtol=1e-3, atol=1e-4, fast_mode=True)
    assert gradcheck(soft, (z, index, free), check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(soft, (z, index, free), rtol=1e-3, atol=1e-4, fast_mode=True)


def test_hessian_is_the_jacobian_of_the_map():
    z = torch.randn(5, dtype=F64)
    for alpha in (1.0, 1.5, 2.0):
        expected = jacrev(lambda z, a=alpha: contmax.entmax(z, a))(z)
        for target in (torch.tensor(1), torch.full((5,), 0.2, dtype=F64)):
            torch.testing.assert_close(hessian(lambda z, a=alpha, t=target: entmax_loss(z, t, a))(z), expected)


def test_vmap_over_logits_and_over_targets():
    z, y = torch.randn(4, 6, dtype=F64), torch.randint(0, 6, (4,))
    torch.testing.assert_close(vmap(lambda z, y: entmax_loss(z, y))(z, y), entmax_loss(z, y, reduction="none"))
    every = vmap(lambda y: entmax_loss(z[0], y))(torch.arange(6))
    torch.testing.assert_close(every, entmax_loss(z[:1].expand(6, 6), torch.arange(6), reduction="none"))


def test_masked_and_impossible_classes():
    z = torch.tensor([[0.5, -math.inf, 1.0]], requires_grad=True)
    possible = entmax_loss(z, torch.tensor([0]))
    torch.testing.assert_close(possible, entmax_loss(z[:, [0, 2]], torch.tensor([0])))
    for target in (torch.tensor([1]), torch.tensor([[0.0, 1.0, 0.0]])):
        impossible = entmax_loss(z, target)
        assert impossible.item() == math.inf
        assert torch.autograd.grad(impossible, z)[0].isfinite().all()
    mask = torch.tensor([True, False, True])
    free = torch.randn(2, 3, requires_grad=True)
    masked = entmax_loss(free, torch.tensor([0, 2]), mask=mask)
    torch.testing.assert_close(masked, entmax_loss(free[:, mask], torch.tensor([0, 1])))
    assert (torch.autograd.grad(masked, free)[0][:, 1] == 0).all()
    nothing = entmax_loss(free, torch.tensor([0, 2]), mask=torch.zeros(3, dtype=torch.bool))
    assert nothing.item() == math.inf
    assert torch.autograd.grad(nothing, free)[0].isfinite().all()


@pytest.mark.parametrize("shift", [1e6, -1e6])
def test_shifted_logits(shift):
    z = (4 * torch.randn(8, 50)).round() / 4
    y = torch.randint(0, 50, (8,))
    soft = torch.softmax(torch.randn(8, 50), -1)
    for target in (y, soft):
        torch.testing.assert_close(entmax_loss(z + shift, target), entmax_loss(z, target), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.3, 1.5, 2.0, 3.0])
def test_large_logits_do_not_swallow_the_loss(alpha):
    z, y = torch.tensor([[0.75, 0.5, -0.25, -2.0]], dtype=F64), torch.tensor([1])
    index = torch.full((1, 1), alpha, dtype=F64)
    soft = torch.tensor([[0.5, 0.25, 0.25, 0.0]], dtype=F64)
    for options in ({}, {"label_smoothing": 0.25}, {"label_smoothing": 0.25, "mask": z > -1}):
        for target in (y, soft):
            expected = entmax_loss(z, target, alpha, **options)
            for large in (2.0**20, 2.0**49):
                found = [entmax_loss(z + large, target, a, **options) for a in (alpha, index)]
                torch.testing.assert_close(found, [expected] * 2, rtol=1e-12, atol=0)
    two = entmax_loss(torch.tensor([[0.0, -1e30, 1e30, 1e30]]), torch.tensor([3]), alpha).item()
    assert two == pytest.approx(entmax_loss(torch.zeros(1, 2, dtype=F64), torch.tensor([0]), alpha).item(), rel=1e-6)


@pytest.mark.parametrize("alpha", [0.0625, 0.25, 0.75])
def test_soft_targets_below_one_in_float32(alpha):
    """The negentropies of 300 classes are up to 2000 there, and differ by a few."""
    z = torch.randn(4, 300)
    y = torch.softmax(torch.randn(4, 300), -1)
    exact = entmax_loss(z.double(), y.double(), alpha, reduction="none")
    found = entmax_loss(z, y, alpha, reduction="none")
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)


def test_low_precision_and_float32():
    z = 3 * torch.randn(16, 40)
    y = torch.randint(0, 40, (16,))
    exact = entmax_loss(z.double(), y)
    assert abs(entmax_loss(z, y).item() - exact.item()) < 1e-6
    for dtype in (torch.bfloat16, torch.float16):
        low = z.to(dtype)
        loss = entmax_loss(low, y)
        assert loss.dtype == dtype
        torch.testing.assert_close(loss.double(), entmax_loss(low.double(), y), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize("soft", [False, True])
def test_gradients_that_half_precision_cannot_hold_are_its_largest_number(soft):
    """By the kernel, and where the gradient may be differentiated again, by torch's operations."""
    z = torch.tensor([[4.0, 0.0, 0.0], [0.0, 0.5, 0.2]], dtype=torch.float16, requires_grad=True)
    target = torch.tensor([1, 0])
    target = F.one_hot(target, 3).half() if soft else target
    with torch.autocast("cpu", torch.float16):
        loss = entmax_loss(z, target, 1.5, reduction="sum")
    assert loss.dtype == torch.float32
    for again in (False, True):
        (gradient,) = torch.autograd.grad(1e6 * loss, z, create_graph=again, retain_graph=True)
        assert gradient.dtype == torch.float16
        assert gradient[0].tolist() == [65504.0, -65504.0, 0.0]
        assert gradient.isfinite().all()


def test_all_ignored_is_zero_not_nan():
    z = torch.randn(3, 4, requires_grad=True)
    loss = entmax_loss(z, torch.full((3,), -100))
    assert loss.item() == 0.0
    assert (torch.autograd.grad(loss, z)[0] == 0).all()


def test_backward_twice_and_keeps_one_copy():
    z = torch.randn(4, 6, requires_grad=True)
    loss = sparsemax_loss(z, torch.tensor([0, 1, 2, 3]))
    first = torch.autograd.grad(loss, z, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, z), first)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        sparsemax_loss(z, torch.tensor([0, 1, 2, 3]), reduction="sum")
    copies = {t.data_ptr() for t in saved if t.shape == z.shape} - {z.data_ptr()}
    assert len(copies) == 1


def test_sparsemax_loss_is_alpha_two_with_every_option():
    z, y = torch.randn(3, 5, 2), torch.randint(0, 5, (3, 2))
    options = {"label_smoothing": 0.1, "reduction": "sum", "weight": torch.rand(5)}
    torch.testing.assert_close(sparsemax_loss(z, y, **options), entmax_loss(z, y, 2.0, **options))
    torch.testing.assert_close(sparsemax_loss(z.movedim(1, 2), y, dim=2), sparsemax_loss(z, y))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: entmax_loss(z, torch.zeros(3, dtype=torch.long)), "do not fit"),
        (lambda z: entmax_loss(z, torch.zeros(2, 5)), "do not fit"),
        (lambda z: entmax_loss(z, torch.tensor([0, 9])), "class ids must be in"),
        (lambda z: entmax_loss(z, torch.tensor([0, -1])), "class ids must be in"),
        (lambda z: entmax_loss(z, torch.full((2, 4), 0.4)), "must be probabilities"),
        (lambda z: entmax_loss(z, torch.tensor([0, 1]), weight=torch.ones(3)), "one entry per class"),
        (lambda z: entmax_loss(z, torch.tensor([0, 1]), label_smoothing=1.5), "label_smoothing"),
        (lambda z: entmax_loss(z, torch.tensor([0, 1]), reduction="average"), "reduction must be"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.randn(2, 4))


@pytest.mark.graph
@pytest.mark.parametrize("soft", [False, True])
def test_compiles_whole(soft):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda z, y: entmax_loss(z, y, 1.5), fullgraph=True, backend="aot_eager_default_partitioner"
    )
    z = torch.randn(4, 6, dtype=F64, requires_grad=True)
    y = torch.softmax(torch.randn(4, 6, dtype=F64), -1) if soft else torch.tensor([0, 1, 5, -100])
    torch.testing.assert_close(compiled(z, y), entmax_loss(z, y, 1.5))
    torch.testing.assert_close(torch.autograd.grad(compiled(z, y), z), torch.autograd.grad(entmax_loss(z, y, 1.5), z))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classes_that_stand_last_are_told_from_other_mistakes(smoothing):
    scores, ids = torch.randn(2, 5, 7), torch.zeros(2, 5, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"with classes along dim=1: pass dim=-1 if the classes stand last, as in"):
        contmax.losses.entmax_loss(scores, ids, label_smoothing=smoothing)
    with pytest.raises(ValueError, match=r"with classes along dim=1: pass ids of shape \(2, 7\), or"):
        contmax.losses.sparsemax_loss(scores, ids[:, :3])
    assert contmax.losses.entmax_loss(scores, ids, dim=-1).isfinite()

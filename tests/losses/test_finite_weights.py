"""Class weights, smoothing and soft targets that are off by a rounding."""

import math

import pytest
import torch
from torch.nn import functional as F

from contmax import entmax
from contmax.losses import entmax_loss

F64 = torch.float64
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=F64)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_weights_with_smoothing_equal_cross_entropy(reduction, smoothing):
    z = torch.randn(6, 4, 2, dtype=F64, requires_grad=True)
    y = torch.tensor([0, 1, -100, 3, 3, 2])[:, None].expand(6, 2)
    options = {"weight": WEIGHT, "label_smoothing": smoothing, "reduction": reduction}
    ours, theirs = entmax_loss(z, y, 1.0, **options), F.cross_entropy(z, y, **options)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours.sum(), z), torch.autograd.grad(theirs.sum(), z))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0])
def test_weights_with_smoothing_count_each_class_by_its_own(alpha):
    z, y = torch.randn(5, 4, dtype=F64), torch.tensor([0, 1, 3, -100, 2])
    every = torch.stack([entmax_loss(z, torch.full((5,), c), alpha, reduction="none") for c in range(4)], -1)
    expected = 0.7 * entmax_loss(z, y, alpha, weight=WEIGHT, reduction="none")
    expected = expected + 0.3 * torch.where(y == -100, 0, (every * WEIGHT).mean(-1))
    given = entmax_loss(z, y, alpha, weight=WEIGHT, label_smoothing=0.3, reduction="none")
    torch.testing.assert_close(given, expected)
    mask = torch.tensor([True, True, False, True])
    inside = entmax_loss(z[:3, mask], torch.tensor([0, 1, 2]), alpha, weight=WEIGHT[mask], label_smoothing=0.3)
    torch.testing.assert_close(entmax_loss(z[:3], y[:3], alpha, weight=WEIGHT, label_smoothing=0.3, mask=mask), inside)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_class_of_weight_zero_may_be_impossible(smoothing):
    z = torch.tensor([[0.5, 0.1, -math.inf, 0.0], [0.3, 0.2, 0.1, 0.0]], dtype=F64, requires_grad=True)
    loss = entmax_loss(z, torch.tensor([2, 1]), weight=WEIGHT, label_smoothing=smoothing, reduction="sum")
    assert loss.isfinite()
    assert torch.autograd.grad(loss, z)[0].isfinite().all()
    soft = entmax_loss(z, F.one_hot(torch.tensor([2, 1]), 4).to(F64), weight=WEIGHT, reduction="none")
    assert soft[0] == 0
    assert soft[1] > 0


@pytest.mark.parametrize("target", [torch.tensor([0]), torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=F64)])
@pytest.mark.parametrize("weight", [None, WEIGHT + 1])
def test_smoothing_reaches_impossible_classes_unless_they_are_masked(target, weight):
    z = torch.tensor([[0.5, 0.1, -math.inf, 0.0]], dtype=F64, requires_grad=True)
    loss = entmax_loss(z, target, label_smoothing=0.1, weight=weight)
    assert loss.item() == math.inf
    assert torch.autograd.grad(loss, z)[0].isfinite().all()
    assert entmax_loss(z, target, label_smoothing=0.1, weight=weight, mask=z > -math.inf).isfinite()


@pytest.mark.parametrize("alpha", [1 - 1e-7, 1 + 1e-9, 1 + 1e-7, 1 + 1e-5])
def test_a_target_whose_sum_is_off_by_a_rounding(alpha):
    z = torch.tensor([[0.2, -0.3, 1.0]], dtype=F64)
    y = torch.tensor([[0.1, 0.7, 0.2]], dtype=torch.float32).double()
    assert y.sum() != 1
    exact = F.kl_div(torch.log_softmax(z, -1), y / y.sum(), reduction="sum")
    torch.testing.assert_close(entmax_loss(z, y, alpha), exact, rtol=0, atol=1e-4 if alpha > 1 + 1e-6 else 1e-6)
    off = y * (1 + 2e-8)
    torch.testing.assert_close(entmax_loss(z, off, alpha), entmax_loss(z, y, alpha), rtol=0, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_the_gradient_changes_with_the_weight_of_an_example_that_counts_nothing_yet(alpha):
    """By p̂ − y, as for examples of any other weight."""
    logits = torch.randn(3, 5, dtype=F64, requires_grad=True)
    target, weight = torch.tensor([1, 4, 0]), torch.tensor([0.0, 1.0, 0.0], dtype=F64, requires_grad=True)
    losses = entmax_loss(logits, target, alpha, reduction="none")
    (gradient,) = torch.autograd.grad((weight * losses).sum(), logits, create_graph=True)
    direction = torch.randn(3, 5, dtype=F64)
    (found,) = torch.autograd.grad((gradient * direction).sum(), weight)
    residual = entmax(logits, alpha) - F.one_hot(target, 5)
    torch.testing.assert_close(found, (residual * direction).sum(1).detach())

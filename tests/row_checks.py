"""What tests of rows by triton's kernels share: long rows in small, and torch in float64 as the judge."""

import contextlib

import pytest
import torch

import contmax
from contmax import _backend
from contmax.losses import entmax_loss


def reference(function, *arguments):
    """The same by torch in float64: no kernel takes float64."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_backend.NUMBA, "works", False)
        return function(*(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments))


@contextlib.contextmanager
def short_rows_by_lists(longest, chunk, in_slices, short):
    """A context in which rows of more than `longest` scores are listed, by chunks and slices (scores, slots)."""
    from contmax.kernels.gpu import _launch
    from contmax.kernels.losses import _gpu_losses as _losses
    from contmax.kernels.rows import _gpu_maps as _maps

    # Launches are kept by shape, and know the limits.
    kept = [_maps._ready_rows, _maps.backward_of_rows]
    kept += [_losses._short_losses, _losses._gradient]
    for launches in kept:
        launches.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for limit in ("LONGEST_ON_CHIP", "LONGEST_WITH_LOGARITHMS", "LONGEST_BACKWARD"):
            patch.setattr(_maps, limit, longest)
        patch.setattr(_losses, "LONGEST_ON_CHIP", longest)
        for module in (_launch, _losses):
            patch.setattr(module, "CHUNK", chunk)
        patch.setattr(_launch, "_SLICES_OF_FEW", in_slices)
        patch.setattr(_launch, "_SHORT", short)
        yield
    for launches in kept:
        launches.cache_clear()


def check_class_ids_that_do_not_exist(device="cpu", columns=70):
    """Their losses are NaN, and nothing is read outside of their rows.

    ``vmap`` hides the ids from the check that raises where looking at them costs no wait.
    """
    z, y = torch.randn(5, columns, device=device), torch.tensor([3, columns, -1, columns - 1, columns + 7])
    losses = torch.func.vmap(lambda z, y: entmax_loss(z, y, 1.5))(z, y.to(device))
    assert losses.isnan().tolist() == [False, True, True, False, True]


def check_losses_are_not_negative(alpha, device="cpu"):
    """Rounding takes some below 0: here the exact ones are next to 0, or 0."""
    rows, columns = 128, 20
    generator = torch.Generator().manual_seed(0)
    z, y = torch.randn(rows, columns, generator=generator), torch.randint(columns, (rows,), generator=generator)
    z[torch.arange(rows), y] = z.max(1).values + torch.rand(rows, generator=generator) / (alpha - 1)
    z, y = z.to(device), y.to(device)
    for target in (y, contmax.entmax(z, alpha)):
        assert (entmax_loss(z, target, alpha, reduction="none") >= 0).all()


def check_cotangents_where_nothing_has_mass(x, alpha=1.5):
    """They may be anything: the gradient is that of zeros in their place."""
    x = x.detach().requires_grad_()
    p = contmax.entmax(x, alpha)
    assert (p == 0).any(-1).all()
    g = torch.linspace(-1, 2, x.numel()).view(x.shape).to(x)
    (expected,) = torch.autograd.grad(p, x, torch.where(p > 0, g, 0), retain_graph=True)
    for nothing in (torch.inf, -torch.inf, torch.nan):
        (found,) = torch.autograd.grad(p, x, torch.where(p > 0, g, nothing), retain_graph=True)
        assert torch.equal(found, expected)


def check_gradients_that_half_precision_cannot_hold(x, alpha):
    """They are the largest number, not infinite: in each row the cotangent of the largest score has another sign."""
    x = x.detach().half().requires_grad_()
    p = contmax.entmax(x, alpha)
    g = torch.where(x == x.max(-1, keepdim=True).values, 6e4, -6e4).to(x)
    (found,) = torch.autograd.grad(p, x, g)
    z = x.detach().cpu().double().requires_grad_()
    (exact,) = torch.autograd.grad(reference(lambda z: contmax.entmax(z, alpha), z), z, g.cpu().double())
    assert (exact.abs() > 65504).any(-1).all()
    torch.testing.assert_close(found.cpu().double(), exact.clamp(-65504, 65504), rtol=5e-3, atol=70.0)


def check_gradients_of_losses_that_half_precision_cannot_hold(device="cpu", columns=70):
    """Those of logits with a weight of a million, and those of soft targets of logits far below the largest."""
    z, y = (20 * torch.randn(3, columns)).half(), torch.tensor([3, 0, columns - 1])
    soft = torch.zeros(3, columns).scatter(1, y[:, None], 1.0).half()

    def of_logits(z):
        weight = torch.full((columns,), 1e6, device=z.device)
        return torch.autograd.grad(entmax_loss(z, y.to(z.device), weight=weight, reduction="sum"), z)[0]

    def of_targets(z, soft):
        losses = entmax_loss(z, soft, reduction="none")
        return torch.autograd.grad(losses, soft, torch.full_like(losses, 6e4))[0]

    for gradient, given in ((of_logits, [z]), (of_targets, [z, soft])):
        found = gradient(*(x.to(device).detach().requires_grad_() for x in given))
        exact = reference(gradient, *(x.double().requires_grad_() for x in given))
        assert (exact.abs() > 65504).any(-1).all()
        torch.testing.assert_close(found.cpu().double(), exact.clamp(-65504, 65504), rtol=5e-3, atol=70.0)


def rows_of_huge_scores(columns):
    """Rows whose scores are as large as float32 allows, or differ by a few of its last bits; two supports are small."""
    largest = torch.finfo(torch.float32).max
    x = torch.full((7, columns), largest)
    x[1] = -largest
    x[2, ::3] = 3.0e38
    x[3], x[3, 7::100] = 1e38, largest
    for row, number, count in zip(x[4:], (1e6, -3e6, 2.5e7), (5, 3, 97), strict=True):
        row[:] = number + torch.arange(columns) % count * abs(number) * 2**-23
    return x


def check_rows_of_huge_scores(alpha, device="cpu", columns=600):
    """Maps and losses of hard and soft targets, with all gradients, against float64."""
    x = rows_of_huge_scores(columns)
    target = torch.arange(len(x)) * (columns - 1) // len(x)
    soft = torch.rand(x.shape).softmax(-1)
    g = torch.linspace(-1, 2, columns)

    def results(x, target, soft, g):
        x, soft = x.detach().requires_grad_(), soft.detach().requires_grad_()
        p = contmax.entmax(x, alpha)
        hard, mixed = (entmax_loss(x, y, alpha, reduction="none") for y in (target, soft))
        gradients = [torch.autograd.grad(p, x, g.expand_as(x))[0], torch.autograd.grad(hard.sum(), x)[0]]
        return p, hard, mixed, *gradients, *torch.autograd.grad(mixed.sum(), (x, soft))

    given = (x, target, soft, g)
    differences = (False, True, True, False, False, False, True)
    found = zip(results(*(y.to(device) for y in given)), reference(results, *given), differences, strict=True)
    for ours, exact, is_difference in found:
        # Losses and the gradients of targets are differences of two numbers of about 1, or as large as the scores.
        size = exact.abs().amax(-1, keepdim=True) if exact.ndim == 2 else exact.abs()
        size = size.clamp(min=0.1) if is_difference else size
        assert ((ours.detach().cpu().double() - exact).abs() < 2e-5 * size).all()

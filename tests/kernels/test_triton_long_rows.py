"""Lists of long rows by Triton's kernels, in its interpreter: threads that hold several scores of a chunk."""

import pytest
import torch

import contmax
from contmax.kernels.rows import _gpu_long_rows as _long_rows
from contmax.kernels.rows import _gpu_maps as _maps
from contmax.losses import entmax_loss
from row_checks import check_rows_of_huge_scores, reference, short_rows_by_lists

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_in_small")
LENGTH = 600


@pytest.fixture
def _in_small():
    """Rows are long from 64 scores on, in slices of two chunks with eight scores for each thread."""
    with short_rows_by_lists(64, 256, (512, 40), 128):
        yield


def rows(dtype):
    """Peaked, flat, few and many in one thread, ties in it, masked scores, and one that is alone."""
    x = torch.randn(8, LENGTH)
    x[0] *= 5
    x[1] *= 0.01
    x[2, 8:12] += 9
    x[3, 16:24] += 9  # all that one thread holds of a turn
    x[4, 40:44] = x[4].max() + 1
    x[5, 30:32] = x[5].max() + 1
    x[5, 100:] = -torch.inf
    x[6] = -torch.inf
    x[6, 599] = 1.0
    x[7, ::3] += 4  # more than lists hold
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("alpha", [1.25, 1.3, 1.5, 2.0, torch.linspace(1.05, 2, 8).unsqueeze(1)])
def test_maps_and_gradients(alpha, dtype):
    x, g = rows(dtype).requires_grad_(), torch.randn(8, LENGTH).to(dtype)
    p = contmax.entmax(x, alpha)
    (grad,) = torch.autograd.grad(p, x, g)
    z = x.detach().double().requires_grad_()
    index = alpha.double() if torch.is_tensor(alpha) else alpha
    true = reference(lambda z: contmax.entmax(z, index), z)
    (true_grad,) = torch.autograd.grad(true, z, g.double())
    tolerance = 2e-6 if dtype == torch.float32 else 2e-3
    assert (p - true).abs().max() < tolerance
    assert (grad - true_grad).abs().max() < 4 * tolerance * (1 + true_grad.abs().max())


@pytest.mark.parametrize("longest", [64, 1024])  # by lists and on the chip
@pytest.mark.parametrize("alpha", [1.7, torch.tensor([[1.7]]), torch.tensor([[2.0]])])
def test_many_scores_next_to_the_threshold_in_half_precision(alpha, longest):
    # A step of Newton's method is small where so many have next to no mass, and much of it is left to do.
    x = torch.full((1, LENGTH), -20.0)
    x[0, 0], x[0, 1] = 0.0, -1.0923
    x[0, 2:562] = -1.0853 - 0.0231 * torch.rand(560)
    if float(alpha) == 2:
        x[0, 1:3], x[0, 3] = 0.0, -0.3332
        x[0, 4:564] = -0.2724 - 0.0036 * torch.rand(560)
    with short_rows_by_lists(longest, 256, (512, 40), 128):
        p = contmax.entmax(x.half(), alpha)
    index = alpha.double() if torch.is_tensor(alpha) else alpha
    true = reference(lambda z: contmax.entmax(z, index), x.half().double())
    assert (p - true).abs().sum() < 1e-2


def crowded_rows(epsilon):
    """Of each row a few scores that have mass, hundreds within a small distance of its threshold, and no others."""
    count = 12
    few, many = (10 ** (0.3 + 1.2 * torch.rand(count, 1))).long(), (10 ** (1 + 1.7 * torch.rand(count, 1))).long()
    reach, place = few.float() ** -epsilon / epsilon, torch.arange(LENGTH)
    crowd = reach * (10 ** (-4 * torch.rand(count, 1)) * (torch.rand(count, LENGTH) - 0.5) - 0.7)
    crowd -= 0.9 * reach * torch.rand(count, 1)
    above = torch.where(place < few // 2, 0.0, -reach * torch.rand(count, 1))
    return torch.where(place < few, above, torch.where(place < few + many, crowd, -100.0))


@pytest.mark.parametrize("longest", [64, 1024])
@pytest.mark.parametrize("alpha", [1.9, torch.tensor([[1.9]]), torch.tensor([[2.0]])])
def test_many_scores_next_to_the_threshold(alpha, longest):
    x = crowded_rows(float(alpha) - 1)
    with short_rows_by_lists(longest, 256, (512, 40), 128):
        p = contmax.entmax(x, alpha)
    true = reference(lambda z: contmax.entmax(z, float(alpha)), x)
    # As good as float32 of the scores themselves: 1e-5 with the exact threshold.
    assert (p - true).abs().sum(1).max() < 1.5e-5


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("listed", [39, 40, 41])
def test_lists_that_are_full_before_the_end(alpha, listed):
    # A list holds 40 scores, and there are more in the second chunk of the only slice.
    x = torch.full((1, 512), -20.0)
    x[0, :listed], x[0, 300:305] = 0.0, 0.01
    p = contmax.entmax(x, alpha)
    assert (p - reference(lambda z: contmax.entmax(z, alpha), x)).abs().max() < 2e-6


@pytest.mark.parametrize(("alpha", "above"), [(1.9, 5e-4), (2.0, 8e-6)])
def test_scores_that_are_just_above_the_threshold_of_those_before(alpha, above):
    # Eight threads have a score of 0 each: their bound is exact, but for rounding.
    x = torch.full((1, 512), -20.0)
    x[0, :64:8] = 0.0
    x[0, 300:310] = above - 8 ** (1 - alpha) / (alpha - 1)
    p = contmax.entmax(x, alpha)
    true = reference(lambda z: contmax.entmax(z, alpha), x)
    assert (p - true).abs().sum() < 0.1 * true[0, 300:310].sum()


@pytest.mark.parametrize("alpha", [1.5, 1.7, 1.9])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_what_float32_cannot_hold_is_not_looked_for(alpha, share, monkeypatch):
    # One score has this share of the mass, all others the rest: the last digit of the threshold is worth much of it.
    length, epsilon = 20000, alpha - 1
    p = (1 - share) / length * (1 + 0.5 * torch.rand(1, length, dtype=torch.float64))
    p[0, 0] = share
    x = (((p / p.sum()) ** epsilon - 1) / epsilon).float()
    passes, sums = [], _long_rows.chunk_sums
    monkeypatch.setattr(_long_rows, "chunk_sums", lambda *given: passes.append(1) or sums(*given))
    p = contmax.entmax(x, alpha)
    assert len(passes) < 12
    assert (p - reference(lambda z: contmax.entmax(z, alpha), x)).abs().sum() < 2e-3


@pytest.mark.parametrize("longest", [64, 1024])
def test_the_gradient_of_alpha_where_nearly_all_of_it_cancels(longest):
    # Of rows that are all but flat what is left is a ten-thousandth of its terms.
    x, g, results = 1e-4 * torch.randn(4, LENGTH), torch.randn(4, LENGTH), []
    with short_rows_by_lists(longest, 256, (512, 40), 128):
        for dtype in (torch.float32, torch.float64):
            alpha = torch.ones(4, 1, dtype=dtype, requires_grad=True)
            results += torch.autograd.grad(contmax.entmax(x.to(dtype), alpha), alpha, g.to(dtype))
    assert (results[0] - results[1]).norm() < 0.02 * results[1].norm()


def test_lazily_negated_scores_and_cotangents():
    x, g = rows(torch.float32)[:3].requires_grad_(), torch.randn(3, LENGTH)
    for longest in (64, 1024):
        with short_rows_by_lists(longest, 256, (512, 40), 128):
            p = contmax.entmax(x)
            torch.testing.assert_close(contmax.entmax(torch._neg_view(-x.detach())), p.detach())
            (grad,) = torch.autograd.grad(p, x, torch._neg_view(-g), retain_graph=True)
            torch.testing.assert_close(grad, torch.autograd.grad(p, x, g)[0])


def test_cotangents_whose_numbers_are_far_apart(monkeypatch):
    x, g = rows(torch.float32)[:3].requires_grad_(), torch.randn(LENGTH, 3).mT
    expected = torch.autograd.grad(contmax.entmax(x), x, g)[0]
    seen, as_rows = [], _maps.as_rows
    monkeypatch.setattr(_maps, "TOO_FAR", LENGTH + 1)
    monkeypatch.setattr(_maps, "as_rows", lambda *given: seen.append(given[0].stride()) or as_rows(*given))
    for longest in (64, 1024):
        with short_rows_by_lists(longest, 256, (512, 40), 128):
            p = contmax.entmax(x)
            seen.clear()
            torch.testing.assert_close(torch.autograd.grad(p, x, g)[0], expected)
            assert seen == [(LENGTH, 1)]  # they are brought together


def test_not_a_number_and_infinity_stay_in_their_rows():
    x = rows(torch.float32)
    x[0, 300], x[1, 20] = torch.nan, torch.inf
    p = contmax.entmax(x, 1.5)
    assert p.isnan().all(1).tolist() == [True, True, *[False] * 6]
    torch.testing.assert_close(p[2:].double(), reference(lambda z: contmax.entmax(z, 1.5), x[2:]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_losses(alpha):
    x, target = rows(torch.float32)[:5], torch.tensor([3, 599, 8, 20, 41])
    x.requires_grad_()
    loss = entmax_loss(x, target, alpha, reduction="sum")
    z = x.detach().double().requires_grad_()
    true = reference(lambda z: entmax_loss(z, target, alpha, reduction="sum"), z)
    assert abs(loss - true) < 1e-5 * true
    (grad,), (true_grad,) = torch.autograd.grad(loss, x), torch.autograd.grad(true, z)
    assert (grad - true_grad).abs().max() < 1e-5


@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.7, 2.0])
def test_rows_of_huge_scores(alpha):
    check_rows_of_huge_scores(alpha)

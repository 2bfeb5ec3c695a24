"""Finite maps on a GPU: numbers and gradients of float64 on the CPU, for every kind of input, and nothing waits."""

import pytest
import torch

import contmax
from cuda_checks import (
    BF16,
    DEVICE,
    DTYPES,
    F16,
    F32,
    HALVES,
    ON_GPU,
    Captured,
    assert_accurate,
    drawn,
    without_waiting,
)
from row_checks import (
    check_cotangents_where_nothing_has_mass,
    check_gradients_that_half_precision_cannot_hold,
    check_rows_of_huge_scores,
)

pytestmark = pytest.mark.gpu
ALPHAS = [0.5, 1.0, 1.2, 4 / 3, 1.5, 2.0, 3.0, 10.0]
LENGTHS = [1, 2, 63, 64, 1000, 1024, 4097, 32000, 70000, 128256]


@pytest.fixture(autouse=True)
def backend():
    """In the place of the fixture that chooses among the CPU's backends."""


def entmax(alpha, **options):
    return lambda x: contmax.entmax(x, alpha, **options)


def test_the_calls_of_the_readme():
    scores = drawn(2, 4, 8, 64)
    alpha = torch.full((4, 1, 1), 1.3)
    assert_accurate(contmax.sparsemax, [scores])
    assert_accurate(contmax.softmax, [scores])
    assert_accurate(contmax.entmax, [scores, alpha])
    assert_accurate(lambda x, m: contmax.entmax(x, mask=m, temperature=0.7), [scores, scores > -1])


# -- α, dtype, length --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_alpha(alpha):
    assert_accurate(entmax(alpha), [drawn(37, 1000, scale=2.0)])


@HALVES
@pytest.mark.parametrize("alpha", [1.0, 1.2, 1.5, 2.0, 3.0])
def test_half_precision(alpha, dtype):
    assert_accurate(entmax(alpha), [drawn(37, 1000, scale=2.0)], dtype)


@pytest.mark.parametrize("length", [70, 1000, 40000])
def test_cotangents_where_nothing_has_mass(length):
    for alpha in (1.3, 1.5, 2.0, 3.0):
        check_cotangents_where_nothing_has_mass(drawn(5, length, scale=3.0).to(DEVICE), alpha)


@pytest.mark.parametrize("length", [70, 1000, 40000])
def test_gradients_that_half_precision_cannot_hold(length):
    x = drawn(2, length, scale=0.1)
    x[1, 8:] -= 9.0  # few have mass
    for alpha in (1.9, 2.0, 3.0):
        check_gradients_that_half_precision_cannot_hold(x.to(DEVICE), alpha)


def test_float64_keeps_its_digits():
    for alpha in (1.2, 1.5, 2.0, 3.0):
        assert_accurate(entmax(alpha), [drawn(7, 300)], torch.float64, tolerance=1e-11)


@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n):
    assert_accurate(entmax(1.5), [drawn(5, n, scale=2.0)])


@pytest.mark.parametrize(
    ("n", "alpha", "dtype"), [(63, 2.0, BF16), (4097, 4 / 3, F16), (70000, 2.0, F32), (128256, 1.5, BF16)]
)
def test_lengths_of_other_maps(n, alpha, dtype):
    assert_accurate(entmax(alpha), [drawn(5, n, scale=2.0)], dtype)


@DTYPES
@pytest.mark.parametrize("n", [63, 1000, 4097])
def test_alpha_per_row_with_gradient(n, dtype):
    alpha = torch.linspace(1.05, 2.0, 9)[:, None]
    assert_accurate(contmax.entmax, [drawn(9, n, scale=2.0), alpha], dtype)


@pytest.mark.parametrize("low_high", [(0.5, 0.99), (1.0, 1.0), (0.7, 3.0), (2.0, 8.0)])
def test_alpha_of_any_size_per_row(low_high):
    alpha = torch.linspace(*low_high, 9)[:, None]
    assert_accurate(contmax.entmax, [drawn(9, 100), alpha], ulps=32)


def test_alpha_per_head_with_gradient():
    alpha = torch.tensor([1.0, 1.2, 1.5, 2.0])[:, None, None]
    assert_accurate(contmax.entmax, [drawn(2, 4, 8, 100), alpha])
    assert_accurate(contmax.entmax, [drawn(2, 4, 8, 100), torch.tensor(1.4)])


def test_one_alpha_per_column_of_another_axis():
    alpha = torch.linspace(1.1, 1.9, 6)
    assert_accurate(lambda x, a: contmax.entmax(x, a, dim=1), [drawn(3, 50, 6), alpha])


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.3])
@pytest.mark.parametrize("scale", [1e-3, 50.0])
def test_flat_and_steep_scores(alpha, scale):
    assert_accurate(entmax(alpha), [drawn(9, 1000, scale=scale)])


# -- masks and hostile rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(100,), (2, 1, 1, 100), (8, 100), (4, 1, 1)])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 3.0])
def test_masks_broadcast(shape, alpha):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    assert_accurate(lambda x, m: contmax.entmax(x, alpha, mask=m), [drawn(2, 4, 8, 100), mask])


@pytest.mark.parametrize("alpha", ALPHAS)
def test_rows_with_nothing_to_attend_are_zero(alpha):
    x = drawn(4, 1000)
    x[1] = -torch.inf
    x[2, 7:] = -torch.inf
    x = x.to(DEVICE).requires_grad_()

    def call():
        p = contmax.entmax(x, alpha)
        return p, torch.autograd.grad(p.square().sum(), x)[0]

    p, gradient = without_waiting(call)
    assert not p[1].any()
    assert not gradient[1].any()
    assert not gradient[2, 7:].any()
    assert gradient.isfinite().all()
    torch.testing.assert_close(p.sum(-1), torch.tensor([1.0, 0.0, 1.0, 1.0], device=DEVICE))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_nan_stays_in_its_row(alpha):
    clean = drawn(4, 1000).to(DEVICE)
    x = clean.clone()
    x[2, 500] = torch.nan
    x.requires_grad_()
    p = contmax.entmax(x, alpha)
    gradient = torch.autograd.grad(p[[0, 1, 3]].square().sum(), x)[0]
    assert p[2].isnan().all()
    assert torch.equal(p[[0, 1, 3]], contmax.entmax(clean, alpha)[[0, 1, 3]])
    assert gradient[[0, 1, 3]].isfinite().all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_ties(alpha):
    x = 0.7 * torch.randint(0, 3, (6, 1000), generator=torch.Generator().manual_seed(2)).float()
    x[0] = 3.0
    assert_accurate(entmax(alpha), [x])


@pytest.mark.parametrize("shift", [1e6, -1e6, 3e38])
def test_shifted_scores(shift):
    x = (drawn(5, 100) + shift).to(DEVICE)
    for alpha in (1.5, 2.0, 1.3):
        p = contmax.entmax(x, alpha)
        torch.testing.assert_close(p, contmax.entmax(x - x.amax(-1, keepdim=True), alpha))
        assert p.isfinite().all()


@pytest.mark.parametrize("columns", [600, 5000, 40000])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 1.7, 2.0])
def test_rows_of_huge_scores(alpha, columns):
    check_rows_of_huge_scores(alpha, DEVICE, columns)


def test_temperatures():
    x = drawn(5, 100)
    assert_accurate(lambda x: contmax.entmax(x, 1.5, temperature=0.3), [x])
    rows = torch.tensor([0.2, 0.5, 1.0, 2.0, 9.0])[:, None]
    assert_accurate(lambda x, t: contmax.sparsemax(x, temperature=t), [x, rows])


# -- layouts -----------------------------------------------------------------------------------------------------------

LAYOUTS = {
    "axis first": lambda x: contmax.entmax(x, 1.5, dim=0),
    "axis in the middle": lambda x: contmax.sparsemax(x, dim=1),
    "transposed": lambda x: contmax.entmax(x.mT, 1.5),
    "every other": lambda x: contmax.entmax(x[..., ::2], 1.5),
    "rows apart": lambda x: contmax.entmax(x[:, ::3, 1:], 2.0),
    "expanded": lambda x: contmax.entmax(x[:, :1].expand(-1, 5, -1), 1.5),
    "one dimension": lambda x: contmax.entmax(x[0, 0], 1.5),
}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(layout):
    assert_accurate(LAYOUTS[layout], [drawn(6, 20, 130)])


def test_an_expanded_cotangent():
    assert_accurate(lambda x: contmax.entmax(x, 1.5)[:, :3].sum(-1), [drawn(6, 130)])
    x = drawn(6, 130).to(DEVICE).requires_grad_()
    gradient = torch.autograd.grad(contmax.sparsemax(x).sum(), x)[0]
    assert gradient.abs().max() < 1e-5


@DTYPES
def test_an_empty_batch(dtype):
    x = torch.empty(0, 17, device=DEVICE, dtype=dtype, requires_grad=True)
    p = without_waiting(lambda: contmax.entmax(x, 1.5))
    assert p.shape == (0, 17)
    assert torch.autograd.grad(p.sum(), x)[0].shape == (0, 17)


@pytest.mark.skipif(not ON_GPU, reason="takes 13 GB")
def test_more_numbers_than_an_int32_counts():
    x = torch.randn(17000, 128256, device=DEVICE, dtype=BF16).requires_grad_()
    p = contmax.sparsemax(x)
    gradient = torch.autograd.grad(p, x, p.detach())[0]
    last = x[-3:].detach().requires_grad_()
    q = contmax.sparsemax(last)
    assert torch.equal(p[-3:], q)
    assert torch.equal(gradient[-3:], torch.autograd.grad(q, last, q.detach())[0])


# -- transforms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [F16, BF16])
def test_autocast_gives_float32_as_softmax_does(half):
    x = drawn(5, 100).to(DEVICE, half)
    with torch.autocast(DEVICE, dtype=half):
        p = contmax.entmax(x, 1.5)
        assert p.dtype == F32
        # On the CPU torch's own softmax keeps its dtype.
        assert not ON_GPU or torch.softmax(x, -1).dtype == F32
    torch.testing.assert_close(p, contmax.entmax(x.float(), 1.5))


TRANSFORMS = {
    "vmap": lambda x, a: torch.func.vmap(contmax.entmax)(x, a),
    "vmap of one axis": lambda x, a: torch.func.vmap(lambda row: contmax.entmax(row, 1.5), in_dims=1)(x),
    "grad": lambda x, a: torch.func.grad(lambda x: contmax.entmax(x, a).square().sum())(x),
    "vmap of grad": lambda x, a: torch.func.vmap(torch.func.grad(lambda row: contmax.sparsemax(row)[0]))(x),
    "jacrev": lambda x, a: torch.func.jacrev(lambda row: contmax.entmax(row, 1.3))(x[0]),
    "jvp": lambda x, a: torch.func.jvp(lambda x: contmax.entmax(x, a), (x,), (x.square(),)),
    "jvp in α": lambda x, a: torch.func.jvp(lambda a: contmax.entmax(x, a), (a,), (torch.ones_like(a),)),
    "double backward": lambda x, a: torch.autograd.grad(contmax.entmax(x, a).pow(3).sum(), (x, a), create_graph=True),
    "double backward, fixed": lambda x, a: torch.autograd.grad(
        contmax.entmax(x, 1.5)[:, 0].sum(), x, create_graph=True
    ),
}


@pytest.mark.parametrize("transform", list(TRANSFORMS))
def test_transforms(transform):
    alpha = torch.linspace(1.1, 1.9, 4)[:, None]
    # Second derivatives divide by the probabilities.
    assert_accurate(TRANSFORMS[transform], [drawn(4, 30), alpha], ulps=64)


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [2.0, "tensor"])
def test_compiled(alpha):
    a = torch.linspace(1.1, 1.9, 4, device=DEVICE)[:, None] if alpha == "tensor" else alpha

    def context(x):
        return contmax.entmax(2 * x, a).square().sum(-1)

    x = drawn(4, 300).to(DEVICE).requires_grad_()
    traced = torch.compile(context, fullgraph=True)

    def call():
        y = traced(x)
        return y, *torch.autograd.grad(y.sum(), x)

    y = context(x)
    for got, expected in zip(without_waiting(call), (y, *torch.autograd.grad(y.sum(), x)), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 1.3, 3.0, "tensor"])
def test_captured_in_a_graph(alpha):
    a = torch.linspace(1.1, 1.9, 4, device=DEVICE)[:, None].requires_grad_() if alpha == "tensor" else alpha
    x = drawn(4, 300).to(DEVICE).requires_grad_()
    wanted = [x, a] if alpha == "tensor" else [x]

    def call():
        p = contmax.entmax(x, a)
        return p.detach(), *torch.autograd.grad(p.square().sum(), wanted)

    graph = Captured(call)
    with torch.no_grad():
        x.copy_(drawn(4, 300, seed=9))
    for got, expected in zip(graph.replay(), call(), strict=True):
        assert torch.equal(got, expected)


def test_the_same_bits_every_time():
    x, alpha = drawn(33, 1000).to(DEVICE).requires_grad_(), torch.full((33, 1), 1.4, device=DEVICE, requires_grad=True)

    def call():
        p = contmax.entmax(x, alpha)
        return p, *torch.autograd.grad(p.square().sum(), (x, alpha))

    for first, second in zip(call(), call(), strict=True):
        assert torch.equal(first, second)

"""Triton's kernels under a watch on memory, in its interpreter: they stay inside of their tensors, read no memory that
was never written, and no two programs write different numbers to one address.
"""

import pytest
import torch

import contmax
from attention_checks import F16, F32, _few_queries_too, drawn  # noqa: F401 a fixture
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola
from contmax.losses import entmax_loss, linear_entmax_loss
from row_checks import short_rows_by_lists
from watched_memory import watched_memory

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_few_queries_too")


def check(function, *inputs):
    """The watch raises no error, and memory that was never written, which it fills with NaN, changes no result."""
    results = []
    for watches in (True, False):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
        live = [x for x in leaves if x.requires_grad]
        with watched_memory() if watches else pytest.MonkeyPatch.context():
            value = function(*leaves)
            cotangent = torch.linspace(-1, 2, value.numel()).view(value.shape).to(value.dtype)
            results.append([value, *torch.autograd.grad(value, live, cotangent, allow_unused=True)])
    for watched, plain in zip(*results, strict=True):
        assert plain is watched is None or torch.equal(plain, watched)


def rows(length=70):
    """Peaked, flat, and one whose list is full to the last place where it holds twelve."""
    x = torch.randn(3, length)
    x[0] *= 4
    x[1] *= 0.01
    x[2] = -9.0
    x[2, 3:15] = 0.0
    return x


@pytest.mark.parametrize("alpha", [1.5, 1.3, 3.0, torch.tensor([[0.9], [1.5], [2.5]])], ids=str)
def test_maps(alpha):
    mask = torch.rand(3, 70) > 0.2
    for small in ((4096, 512, (8192, 256), 128), (32, 32, (64, 12), 8)):
        with short_rows_by_lists(*small):
            check(lambda x: contmax.entmax(x, alpha), rows())
            check(lambda x: contmax.entmax(x, alpha, mask=mask), rows())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses(smoothing):
    target, options = torch.tensor([3, 69, 14]), {"label_smoothing": smoothing, "reduction": "none"}
    for small in ((4096, 512, (8192, 256), 128), (32, 32, (64, 12), 8)):
        with short_rows_by_lists(*small):
            check(lambda z: entmax_loss(z, target, 1.5, **options), rows())
            check(lambda z, q: entmax_loss(z, q, 1.5, **options), rows(), torch.randn(3, 70).softmax(-1))
            check(lambda z: entmax_loss(z, target, 1.5, label_smoothing=smoothing), rows())


def test_losses_of_whole_chunks():
    z, soft = torch.randn(2, 1536), torch.randn(2, 1536).softmax(-1)
    check(lambda z: entmax_loss(z, torch.tensor([3, 1535]), 1.5, reduction="none"), z)
    check(lambda z: entmax_loss(z, soft, 1.5), z)


@pytest.mark.parametrize("capacity", [4, 256])
def test_the_loss_of_a_linear_layer(capacity, monkeypatch):
    monkeypatch.setattr("contmax.losses._linear._FEWEST_TOKENS", 4)
    monkeypatch.setattr("contmax.kernels.losses._operators._LONGEST_LIST", capacity)
    hidden, weight, bias = torch.randn(6, 5), torch.randn(40, 5), 0.1 * torch.randn(40)
    hidden[::2] *= 0.02
    target = torch.tensor([3, -100, 39, 0, 20, 7])
    check(lambda h, w, b: linear_entmax_loss(h, w, target, bias=b, reduction="none"), hidden, weight, bias)


@pytest.mark.parametrize(
    ("dtype", "few_keys", "sharp"),
    [(F32, 0, 2.0), (F16, 0, 2.0), (F32, 0, 0.01), (F16, 1024, 2.0)],
    ids=["lists of float32", "lists of half precision", "flat rows", "few keys"],
)
def test_attention(dtype, few_keys, sharp, monkeypatch):
    monkeypatch.setattr("contmax.kernels.attention._sizes._FEW_KEYS", few_keys)
    given = drawn(heads=2, groups=1, queries=5, keys=140, values=20, dtype=dtype, sharp=sharp)
    options = {"lengths": torch.tensor([138]), "is_causal": True, "enable_gqa": True}
    # One α for each head is read from memory too; a number is compiled in.
    alpha = torch.tensor([1.05, 2.0])
    check(lambda *inputs: contmax.entmax_attention(*inputs, alpha=alpha, **options), *given)


@pytest.mark.parametrize("few_keys", [0, 1024], ids=["lists", "few keys"])
def test_biases_by_distance(few_keys, monkeypatch):
    monkeypatch.setattr("contmax.kernels.attention._sizes._FEW_KEYS", few_keys)
    bias = torch.randn(2, 1, 5 + 70 - 1)
    check(lambda *inputs: contmax.entmax_attention(*inputs, bias=bias), *drawn(heads=2, queries=5, keys=70))


@pytest.mark.parametrize("dtype", [F32, F16])
def test_a_list_that_overflows_leaves_the_next_one_alone(dtype, monkeypatch):
    # The last row of a block has 256 equal scores, twice what a list holds; the next row is of another block.
    monkeypatch.setattr("contmax.kernels.attention._sizes._FEW_KEYS", 0)
    query, key, value = drawn(queries=65, keys=256, dtype=dtype)
    query[:, :, :63] = 0.0
    query[..., :63, 0], query[:, :, 63] = 30.0, 0.0
    with watched_memory():
        output = contmax.entmax_attention(query, key, value)
    exact = contmax.entmax_attention(query.double(), key.double(), value.double())
    assert (output - exact).abs().max() < 3e-3


def test_gates_and_masked_means():
    head = contmax.nn.GateHead(4, query_dim=3)
    attend = contmax.nn.ContinuousAttention(GaussianBasis.linspace(6, 0.2), head=head).eval()
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    check(lambda h, q: attend(h, query=q, mask=mask)[0], torch.randn(2, 9, 4), torch.randn(2, 5, 3))
    basis = GaussianBasis.linspace(6, 0.2)
    check(
        lambda h, m: contmax.continuous_attention(h, TruncatedParabola(m, 0.1), basis, mask=mask),
        torch.randn(2, 9, 40),
        torch.rand(2),
    )


@pytest.mark.parametrize("alpha", [1.0, 1.5, 0.8, torch.tensor([0.9, 1.1, 1.7])], ids=str)
def test_expectations_on_the_line(alpha):
    basis = GaussianBasis.linspace(7, 0.2)
    check(
        lambda m, s: contmax.expectation(BetaGaussian(m, s, alpha, validate_args=False), basis),
        torch.rand(3),
        0.1 + torch.rand(3),
    )


@pytest.mark.parametrize("alpha", [1.0, 2.0])
def test_expectations_on_the_plane(alpha):
    basis = MultivariateGaussianBasis.grid(3, 0.2)
    factor = torch.randn(3, 2, 2)
    check(
        lambda m, s: contmax.expectation(MultivariateBetaGaussian(m, s, alpha, validate_args=False), basis),
        torch.rand(3, 2),
        factor @ factor.mT + 0.1 * torch.eye(2),
    )


def test_contexts():
    basis = GaussianBasis.linspace(6, 0.2)
    check(
        lambda h, m, s: contmax.continuous_attention(h, BetaGaussian(m, s, 2.0, validate_args=False), basis),
        torch.randn(3, 11, 40),
        torch.rand(3),
        0.1 + torch.rand(3),
    )

"""A bias with one number for each distance: the same as its matrix, by every way attention takes, in little memory."""

import pytest
import torch

import contmax
from contmax import entmax_attention
from contmax._backend import Backend
from contmax.attention import _reference

F64 = torch.float64


def matrix_of(bias, queries, keys):
    """Entry (i, j) at j − i + Q − 1, written down."""
    i, j = torch.arange(queries).unsqueeze(-1), torch.arange(keys)
    return bias[..., j - i + queries - 1].squeeze(-3) if bias.dim() > 1 else bias[j - i + queries - 1]


def results(given, bias, **options):
    tensors = [x.detach().requires_grad_() for x in given]
    output = entmax_attention(*tensors, bias=bias, **options)
    return output, *torch.autograd.grad(output.square().sum(), tensors)


@pytest.fixture(params=["listed", "in blocks", "whole"])
def way(request, monkeypatch):
    """Through lists of a few queries at a time, through blocks, or at once."""
    if request.param != "whole":
        monkeypatch.setattr(_reference, "_WEIGHTS", 100)
    if request.param != "listed":
        monkeypatch.setattr("contmax.attention._entmax_attention.backend_of_attention", lambda *given: Backend.TORCH)
    return request.param


@pytest.mark.parametrize("shape", [(4, 1), (2, 4, 1), (2, 1, 1), (1,), ()])
@pytest.mark.parametrize(("queries", "keys"), [(7, 12), (12, 7), (9, 9), (3, 1), (1, 8)])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_its_matrix(way, shape, queries, keys, causal):
    given = [torch.randn(2, 4, n, 8, dtype=F64) for n in (queries, keys, keys)]
    bias = torch.randn(*shape, queries + keys - 1, dtype=F64)
    options = {"is_causal": causal, "alpha": 1.5}
    ours, exact = results(given, bias, **options), results(given, matrix_of(bias, queries, keys), **options)
    torch.testing.assert_close(ours, exact, rtol=1e-12, atol=1e-12)


def test_with_masks_lengths_groups_and_other_alphas(way):
    given = [torch.randn(2, heads, n, 8, dtype=F64) for heads, n in ((4, 7), (2, 12), (2, 12))]
    bias, mask = torch.randn(4, 1, 18, dtype=F64), torch.rand(2, 1, 7, 12) > 0.3
    for alpha in (1.0, 2.0, 3.0, torch.tensor([1.2, 1.4, 1.6, 2.0], dtype=F64)):
        options = {
            "mask": mask,
            "lengths": torch.tensor([12, 5]),
            "enable_gqa": True,
            "alpha": alpha,
            "is_causal": True,
        }
        expected = results(given, matrix_of(bias, 7, 12), **options)
        torch.testing.assert_close(results(given, bias, **options), expected, rtol=1e-10, atol=1e-10)


def test_its_own_gradient(way):
    given = [torch.randn(4, n, 8, dtype=F64) for n in (7, 12, 12)]
    bias = torch.randn(4, 1, 18, dtype=F64, requires_grad=True)
    found = []
    for full in (bias, matrix_of(bias, 7, 12)):
        (grad,) = torch.autograd.grad(entmax_attention(*given, bias=full, is_causal=True).square().sum(), bias)
        found.append(grad)
    torch.testing.assert_close(*found)
    assert found[0].abs().max() > 1e-3


def test_a_bias_of_no_known_size_is_refused():
    given = [torch.randn(4, n, 8) for n in (7, 12, 12)]
    for shape in ((4, 1, 17), (4, 7, 18), (3, 1, 18)):
        with pytest.raises(ValueError, match="does not broadcast to the scores"):
            entmax_attention(*given, bias=torch.zeros(shape))


def test_alibi_takes_the_memory_of_a_line():
    attend = contmax.nn.EntmaxAttention(32, 4, is_causal=True, alibi="half")
    bias = attend._penalty(900, 1000)
    assert bias.shape == (4, 1, 1899)
    own, place = torch.arange(100, 1000).unsqueeze(-1), torch.arange(1000)
    slopes = torch.tensor([1, 1 / 2, 0, 0]).view(4, 1, 1)
    torch.testing.assert_close(matrix_of(bias, 900, 1000), -slopes * (own - place).abs())


@pytest.mark.graph
def test_lengths_of_traced_programs_stay_free():
    attend = contmax.nn.EntmaxAttention(8, 2, is_causal=True, alibi="half").eval()
    length = torch.export.Dim("length", min=2, max=30)
    exported = torch.export.export(attend, (torch.randn(2, 9, 8),), dynamic_shapes={"query": {1: length}}).module()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(attend, dynamic=True, fullgraph=True, backend=counted)
    for n in (9, 13, 21):
        x = torch.randn(2, n, 8)
        torch.testing.assert_close(exported(x), attend(x))
        torch.testing.assert_close(compiled(x), attend(x))
    assert len(graphs) == 1


@pytest.mark.graph
@pytest.mark.parametrize("shape", [(4, 1, 18), (4, 7, 12)])
def test_a_bias_of_any_form_compiles_with_free_sizes(shape):
    given = [torch.randn(2, 4, n, 8) for n in (7, 12, 12)]
    compiled = torch.compile(entmax_attention, dynamic=True, fullgraph=True, backend="eager")
    bias = torch.randn(shape)
    torch.testing.assert_close(compiled(*given, bias=bias), entmax_attention(*given, bias=bias))

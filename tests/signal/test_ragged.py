"""Ragged batches: the weights of every number of observations are computed once, and no sequence sees another."""

import copy
import gc

import pytest
import torch

import contmax
from contmax.basis import CosineBasis, GaussianBasis, PowerBasis, RectangularBasis
from contmax.basis._basis import living
from contmax.signal import _ridge

F64 = torch.float64


def lengths_mask(lengths, length):
    return torch.arange(length) < torch.tensor(lengths).unsqueeze(-1)


def alone(values, basis, mask, penalty=0.01):
    """Every sequence fitted by itself, without a mask, at positions that are told."""
    rows = []
    for row, kept in zip(values, mask, strict=True):
        n = int(kept.sum())
        t = (torch.arange(n, dtype=F64) + 0.5) / max(n, 1)
        rows.append(
            torch.zeros(basis.num_functions, values.shape[-1], dtype=values.dtype)
            if n == 0
            else contmax.fit_signal(row[kept], basis, positions=t, penalty=penalty).coefficients
        )
    return torch.stack(rows)


@pytest.fixture(params=["numbers can be read", "numbers stay on the device"])
def device_like(request, monkeypatch):
    """Run as on the CPU, where lengths can be looked at, and as on an accelerator, where they cannot."""
    if request.param.endswith("device"):
        monkeypatch.setattr(_ridge, "is_eager_cpu", lambda *values: False)
        monkeypatch.setattr(_ridge, "_on_device", lambda n, device: torch.arange(n[0], n[-1] + 1))


@pytest.mark.parametrize("basis", [GaussianBasis.linspace(16, (0.1, 0.5)), CosineBasis.harmonics(5), PowerBasis(3)])
def test_every_sequence_is_fitted_as_if_it_were_alone(basis, device_like):
    basis = copy.deepcopy(basis)
    values, mask = torch.randn(6, 40, 3), lengths_mask([40, 1, 17, 0, 39, 10], 40)
    mask[2, 3:9] = False  # holes
    got = contmax.fit_signal(torch.where(mask[..., None], values, torch.nan), basis, mask=mask)
    expected = alone(values.double(), basis, mask)
    scale = expected.abs().amax()
    torch.testing.assert_close(got.coefficients / scale, (expected / scale).float(), rtol=0, atol=3e-7)
    r = torch.randn(6, basis.num_functions)
    mixed = torch.einsum("bk,bkd->bd", r.double(), expected)
    torch.testing.assert_close(got.mix(r) / scale, (mixed / scale).float(), rtol=0, atol=3e-6)


def test_float64_keeps_its_digits(device_like):
    basis, values = GaussianBasis.linspace(12, 0.1).double(), torch.randn(4, 30, 2, dtype=F64)
    mask = lengths_mask([30, 12, 7, 1], 30)
    got = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(got, alone(values, basis, mask), rtol=1e-9, atol=1e-9)


def test_batches_of_other_shapes(device_like):
    basis, values = GaussianBasis.linspace(8, 0.2), torch.randn(2, 3, 11, 4)
    mask = torch.rand(2, 3, 11) > 0.4
    got = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(
        got.flatten(0, 1), alone(values.flatten(0, 1), basis, mask.flatten(0, 1)), rtol=1e-4, atol=1e-4
    )
    one = mask[0, 0]
    for shape in ((11,), (1, 1, 11), (1, 11)):
        shared = contmax.fit_signal(values, basis, mask=one.reshape(shape)).coefficients
        torch.testing.assert_close(
            shared.flatten(0, 1), alone(values.flatten(0, 1), basis, one.expand(6, 11)), rtol=1e-4, atol=1e-4
        )


def test_weights_of_a_length_are_computed_once(monkeypatch, device_like):
    basis, computed = GaussianBasis.linspace(8, 0.1), []
    compute = _ridge.ridge_fit
    monkeypatch.setattr(
        _ridge, "ridge_fit", lambda design, *penalty: computed.append(design) or compute(design, *penalty)
    )
    values = torch.randn(3, 20, 2)
    for lengths in ([20, 5, 9], [9, 5, 5], [20, 20, 9]):
        mask = lengths_mask(lengths, 20)
        got = contmax.fit_signal(values, basis, mask=mask).coefficients
        torch.testing.assert_close(got, alone(values, basis, mask), rtol=1e-4, atol=1e-4)
    assert len(computed) == 1
    # Shorter and longer batches: a table that grows holds what it held.
    for length, lengths in ((9, [9, 9, 5]), (31, [31, 5, 20])):
        values, mask = torch.randn(3, length, 2), lengths_mask(lengths, length)
        got = contmax.fit_signal(values, basis, mask=mask).coefficients
        torch.testing.assert_close(got, alone(values, basis, mask), rtol=1e-4, atol=1e-4)
    assert len(computed) == 2
    assert len(_ridge._TABLES.entries[basis]) == 1


def test_tables_follow_the_basis_and_go_with_it(device_like):
    basis, values, mask = GaussianBasis.linspace(8, 0.1), torch.randn(2, 15, 2), lengths_mask([15, 6], 15)
    first = contmax.fit_signal(values, basis, mask=mask).coefficients
    basis.loc.add_(0.05)
    moved = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(moved, alone(values, basis, mask), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first, moved)
    twin = copy.deepcopy(basis)
    assert living[basis._id] is basis
    assert living[twin._id] is twin
    gc.collect()  # what compilers have left of other tests
    before = len(_ridge._TABLES.entries)
    del basis
    gc.collect()
    assert len(_ridge._TABLES.entries) == before - 1


def test_large_tables_are_not_kept(monkeypatch):
    monkeypatch.setattr(_ridge, "_LARGEST_TABLE", 1000)
    basis, values, mask = GaussianBasis.linspace(8, 0.1), torch.randn(2, 15, 2), lengths_mask([15, 6], 15)
    got = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(got, alone(values, basis, mask), rtol=1e-4, atol=1e-4)
    assert basis not in _ridge._TABLES.entries


def test_tables_are_filled_in_blocks(monkeypatch, device_like):
    monkeypatch.setattr(_ridge, "_BLOCK", 8 * 15 * 4)
    basis, values, mask = GaussianBasis.linspace(8, 0.1), torch.randn(9, 15, 2), torch.rand(9, 15) > 0.3
    got = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(got, alone(values, basis, mask), rtol=1e-4, atol=1e-4)


def test_without_a_penalty_only_lengths_that_are_met_must_have_a_fit():
    basis, values = GaussianBasis.linspace(8, 0.15), torch.randn(2, 30, 2)
    mask = lengths_mask([30, 0], 30)
    got = contmax.fit_signal(values, basis, mask=mask, penalty=0.0).coefficients
    torch.testing.assert_close(got, alone(values, basis, mask, 0.0), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="linearly dependent"):
        contmax.fit_signal(values, basis, mask=lengths_mask([30, 5], 30), penalty=0.0)


def test_lengths_without_a_fit_reach_no_other_length(monkeypatch):
    """As on an accelerator: a table has all lengths, and NaN for those whose fit without a penalty is not unique."""
    monkeypatch.setattr(_ridge, "is_eager_cpu", lambda *values: False)
    monkeypatch.setattr(_ridge, "_on_device", lambda n, device: torch.arange(n[0], n[-1] + 1))
    basis, values = RectangularBasis(torch.linspace(0, 1, 9)), torch.randn(2, 8, 2)
    assert contmax.fit_signal(values[0, :7], basis, penalty=0.0).coefficients.isnan().any()
    mask = lengths_mask([8, 0], 8)
    got = contmax.fit_signal(values, basis, mask=mask, penalty=0.0).coefficients
    torch.testing.assert_close(got, alone(values, basis, mask, 0.0), rtol=1e-3, atol=1e-3)


def test_what_inference_computed_can_be_trained_with(device_like):
    basis, mask = GaussianBasis.linspace(8, 0.15), lengths_mask([30, 4], 30)
    with torch.inference_mode():
        contmax.fit_signal(torch.randn(2, 30, 2), basis, mask=mask)
    values = torch.randn(2, 30, 2, requires_grad=True)
    contmax.fit_signal(values, basis, mask=mask).coefficients.sum().backward()
    assert torch.equal(values.grad[~mask], torch.zeros_like(values.grad[~mask]))
    assert values.grad[mask].abs().min() > 0


def test_a_learned_basis_gets_its_gradient():
    basis, mask = GaussianBasis.linspace(6, 0.2, learnable=True), lengths_mask([12, 7], 12)
    contmax.fit_signal(torch.randn(2, 12, 2), basis, mask=mask).coefficients.square().sum().backward()
    assert basis.loc.grad.abs().min() > 0


def test_the_operator_of_a_graph_is_vmapped_over_masks_and_over_constants():
    basis, mask = GaussianBasis.linspace(6, 0.2), torch.rand(3, 2, 9) > 0.4
    fit = (9, None, 0.01, torch.float32, torch.device("cpu"), basis._id)
    weights = torch.ops.contmax.default_weights
    constants = tuple(basis.buffers())
    expected = weights(constants, mask, *fit)
    for axis in (0, 1):
        got = torch.vmap(lambda m: weights(constants, m, *fit), in_dims=axis)(mask.movedim(0, axis))
        torch.testing.assert_close(got, expected)
    moved = [torch.stack([c, c + 0.05]) for c in constants]
    got = torch.vmap(lambda *constants: weights(constants, mask, *fit))(*moved)
    torch.testing.assert_close(got[0], expected)
    assert not torch.allclose(got[1], expected)


@pytest.mark.graph
@pytest.mark.parametrize("ragged", [False, True])
def test_a_compiled_graph_factorises_nothing(ragged):
    torch._dynamo.reset()
    basis, graphs = GaussianBasis.linspace(8, 0.1), []

    def fit(values, mask):
        return contmax.fit_signal(values, basis, mask=mask).coefficients

    def backend(graph, examples):
        graphs.append(str(graph.graph))
        return graph.forward

    compiled = torch.compile(fit, fullgraph=True, backend=backend, dynamic=None)
    for length in (20, 23, 31):
        values = torch.randn(2, length, 2, requires_grad=True)
        mask = lengths_mask([length, 7], length) if ragged else None
        torch.testing.assert_close(compiled(values, mask), fit(values, mask))
        compiled(values, mask).sum().backward()
    assert len(graphs) == 2  # the second is for any length
    assert all("default_weights" in graph and "cholesky" not in graph for graph in graphs)
    # Graphs, too, follow the basis.
    basis.loc.add_(0.05)
    torch.testing.assert_close(compiled(values, mask), fit(values, mask))
    assert len(graphs) == 2


@pytest.mark.graph
def test_a_compiled_function_tells_bases_apart():
    torch._dynamo.reset()
    values, mask = torch.randn(2, 12, 2), lengths_mask([12, 5], 12)

    @torch.compile(fullgraph=True, backend="eager")
    def fit(basis):
        return contmax.fit_signal(values, basis, mask=mask).coefficients

    for basis in (CosineBasis([1.0, 2.0]), contmax.basis.SineBasis([1.0, 2.0]), contmax.basis.SineBasis([3.0, 4.0])):
        torch.testing.assert_close(fit(basis), contmax.fit_signal(values, basis, mask=mask).coefficients)

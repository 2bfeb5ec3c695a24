"""Signals: golden ridge fits, masks, positions, lazy expectations, streams and processes."""

import gc
import os

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from forked import run_on_two

F64 = torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_ridge_value_function(golden, dtype):
    for case in golden["ridge_value_function"]:
        inputs = case["inputs"]
        centres = torch.tensor([float(v) for v in inputs["mu_j"]], dtype=dtype)
        basis = GaussianBasis(centres, torch.tensor(float(inputs["sigma_j"]), dtype=dtype))
        t = torch.tensor([float(v) for v in inputs["t"]], dtype=dtype)
        H = torch.tensor([[float(v) for v in row] for row in inputs["H"]], dtype=dtype)
        signal = contmax.fit_signal(H.mT, basis, positions=t, penalty=float(inputs["lam"]))
        if dtype == F64:
            expected = torch.tensor([[float(v) for v in row] for row in case["outputs"]["B"]], dtype=dtype)
            torch.testing.assert_close(signal.coefficients.mT, expected, rtol=1e-10, atol=1e-12)
        else:
            exact = contmax.fit_signal(
                H.mT.double(), basis.double(), positions=t.double(), penalty=float(inputs["lam"])
            ).coefficients
            scale = exact.abs().max()
            torch.testing.assert_close(signal.coefficients.double(), exact, rtol=2e-5, atol=2e-6 * scale.item())


def test_default_positions_are_cell_centres_and_grids_are_row_major():
    basis = GaussianBasis.linspace(6, 0.2)
    values = torch.randn(10, 3)
    at = (torch.arange(10) + 0.5) / 10
    torch.testing.assert_close(
        contmax.fit_signal(values, basis).coefficients, contmax.fit_signal(values, basis, positions=at).coefficients
    )
    plane = MultivariateGaussianBasis.grid(3, 0.3)
    pixels = torch.randn(2, 8, 1)
    rows, columns = torch.meshgrid((torch.arange(2) + 0.5) / 2, (torch.arange(4) + 0.5) / 4, indexing="ij")
    centres = torch.stack([rows, columns], -1).reshape(-1, 2)
    torch.testing.assert_close(
        contmax.fit_signal(pixels, plane, grid=(2, 4)).coefficients,
        contmax.fit_signal(pixels, plane, positions=centres).coefficients,
    )


@pytest.mark.parametrize("length", [1, 5, 40])
def test_masked_sequences_equal_short_ones(length):
    basis = GaussianBasis.linspace(8, 0.1).double()
    values = torch.randn(3, 40, 2, dtype=F64)
    mask = torch.arange(40) < torch.tensor([[40], [length], [0]])
    coefficients = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(coefficients[1], contmax.fit_signal(values[1, :length], basis).coefficients)
    assert (coefficients[2] == 0).all()
    holes = torch.rand(40) > 0.5
    torch.testing.assert_close(
        contmax.fit_signal(values[0], basis, mask=holes).coefficients,
        contmax.fit_signal(values[0][holes], basis).coefficients,
    )
    poisoned = torch.where(mask[..., None], values, torch.nan)
    torch.testing.assert_close(contmax.fit_signal(poisoned, basis, mask=mask).coefficients, coefficients)


def test_positions_per_example_and_evaluation_anywhere():
    basis = GaussianBasis.linspace(24, 0.08).double()
    t = torch.rand(4, 200, dtype=F64)
    signal = contmax.fit_signal(torch.sin(5 * t)[..., None], basis, positions=t, penalty=1e-6)
    query = torch.linspace(0.1, 0.9, 7, dtype=F64)
    assert signal(query).shape == (4, 7, 1)
    torch.testing.assert_close(signal(query)[..., 0], torch.sin(5 * query).expand(4, 7), rtol=0, atol=1e-3)
    torch.testing.assert_close(signal(query.expand(4, 7)), signal(query))


def test_gradients_reach_values_positions_and_basis():
    basis = GaussianBasis.linspace(5, 0.2, learnable=True).double()
    values = torch.randn(9, 2, dtype=F64, requires_grad=True)
    positions = torch.rand(9, dtype=F64, requires_grad=True)

    def coefficients(values, positions, loc, log_scale):
        moved = torch.func.functional_call(basis, {"loc": loc, "log_scale": log_scale}, positions)
        gram = moved.mT @ moved + 0.01 * torch.eye(5, dtype=F64)
        return torch.linalg.solve(gram, moved.mT @ values)

    expected = coefficients(values, positions, basis.loc, basis.log_scale)
    got = contmax.fit_signal(values, basis, positions=positions).coefficients
    torch.testing.assert_close(got, expected)
    g = torch.randn_like(got)
    inputs = (values, positions, basis.loc, basis.log_scale)
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, g), torch.autograd.grad(expected, inputs, g), rtol=1e-6, atol=1e-8
    )


def test_both_orders_of_multiplication_agree():
    basis = GaussianBasis.linspace(16, 0.1).double()
    signal = contmax.fit_signal(torch.randn(2, 50, 3, dtype=F64), basis)
    for queries in ((), (1,), (4000,), (2, 3)):
        loc = torch.rand(2, *queries, dtype=F64)
        density = contmax.densities.TruncatedParabola(loc, torch.full_like(loc, 0.1))
        r = contmax.expectation(density, basis)
        expected = torch.einsum("b...k,bkd->b...d", r, signal.coefficients)
        torch.testing.assert_close(signal.expectation(density), expected)
        torch.testing.assert_close(signal.materialize().expectation(density), expected)


def test_signals_are_immutable_values():
    basis = GaussianBasis.linspace(4, 0.3)
    values = torch.randn(6, 2, requires_grad=True)
    signal = contmax.fit_signal(values, basis)
    assert not signal.detach().coefficients.requires_grad
    assert signal.coefficients.requires_grad
    assert signal.to(F64).coefficients.dtype == F64
    t = torch.rand(5)
    density = contmax.densities.TruncatedParabola(torch.tensor(0.4), 0.1)
    for made in (signal, signal.materialize()):
        assert made.to(F64)(t).dtype == made.to(F64).expectation(density).dtype == F64
        assert made(t).dtype == made.to(F64).to(torch.float32)(t).dtype == torch.float32
        assert made.to(torch.bfloat16)(t).dtype == torch.bfloat16
        torch.testing.assert_close(made.to(F64)(t).float(), made(t))
    assert "lazy" in repr(signal)
    assert "materialized" in repr(signal.materialize())


def test_a_detached_signal_knows_where_it_was_observed_and_what_was_masked():
    basis = GaussianBasis.linspace(4, 0.3)
    values, positions = (torch.rand(6, *tail, dtype=F64, requires_grad=True) for tail in ((2,), ()))
    mask = torch.arange(6) != 2
    poisoned = torch.where(mask.unsqueeze(-1), values, torch.nan)
    for where in (positions, None):
        signal = contmax.fit_signal(poisoned, basis, positions=where, mask=mask)
        cut = signal.detach()
        for ours, theirs in (
            (cut.coefficients, signal.coefficients),
            (cut.explained_variance(), signal.explained_variance()),
            (cut.mix(torch.ones(4, dtype=F64)), signal.mix(torch.ones(4, dtype=F64))),
        ):
            assert theirs.requires_grad
            assert not ours.requires_grad
            assert ours.isfinite().all()
            torch.testing.assert_close(ours, theirs.detach())


def test_a_signal_takes_its_basis_along():
    basis = GaussianBasis.linspace(4, 0.3, learnable=True)
    signal = contmax.fit_signal(torch.randn(6, 2), basis)
    wide = signal.to(F64)
    assert (wide.basis.loc.dtype, basis.loc.dtype) == (F64, torch.float32)
    assert signal.basis is basis
    t = torch.rand(3, dtype=F64)
    expected = torch.autograd.grad(signal(t).sum(), tuple(basis.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(wide(t).sum(), tuple(basis.parameters())), expected)
    elsewhere = signal.to("meta")
    assert elsewhere.basis.loc.is_meta
    assert elsewhere(t.to("meta")).shape == (3, 2)
    assert signal.to(torch.bfloat16).basis.loc.dtype == torch.float32


def test_weights_are_cached_and_follow_the_basis():
    basis = GaussianBasis.linspace(4, 0.3)
    values = torch.randn(6, 2)
    first = contmax.fit_signal(values, basis).coefficients
    torch.testing.assert_close(contmax.fit_signal(values, basis).coefficients, first)
    basis.loc.add_(0.1)
    moved = contmax.fit_signal(values, basis).coefficients
    assert not torch.allclose(moved, first)
    torch.testing.assert_close(
        moved, contmax.fit_signal(values, basis, positions=(torch.arange(6) + 0.5) / 6).coefficients
    )
    from contmax.signal import _ridge

    before = len(_ridge._WEIGHTS.entries)
    del basis
    gc.collect()
    assert len(_ridge._WEIGHTS.entries) < before


def test_chunks_give_the_signal_of_the_whole():
    basis = GaussianBasis.linspace(12, 0.1)
    values, t = torch.randn(2, 90, 3), torch.rand(90)
    whole = contmax.fit_signal(values, basis, positions=t).coefficients
    left, right = contmax.SignalAccumulator(basis), contmax.SignalAccumulator(basis)
    left.update(values[:, :20], t[:20])
    right.update(values[:, 20:], t[20:], mask=torch.ones(70, dtype=torch.bool))
    left.merge(right)
    torch.testing.assert_close(left.signal().coefficients, whole, rtol=1e-4, atol=1e-4)


def _accumulate(rank, path, values, t, results):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    stream = contmax.SignalAccumulator(GaussianBasis.linspace(12, 0.1))
    stream.update(values[:, rank::2], t[rank::2])
    stream.all_reduce()
    results[rank] = stream.signal().coefficients
    torch.distributed.barrier()
    # To tear down gloo here may wait for ever: its thread needs the interpreter's lock, which the destructor holds.
    os._exit(0)


def test_two_processes_give_the_signal_of_the_whole(tmp_path):
    values, t = torch.randn(2, 91, 3), torch.rand(91)
    results = torch.zeros(2, 2, 12, 3).share_memory_()
    run_on_two(_accumulate, str(tmp_path / "rendezvous"), values, t, results)
    whole = contmax.fit_signal(values, GaussianBasis.linspace(12, 0.1), positions=t).coefficients
    torch.testing.assert_close(results[0], whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: contmax.fit_signal(torch.randn(5), b), "values"),
        (lambda b: contmax.fit_signal(torch.randn(0, 2), b), "no observation"),
        (lambda b: contmax.fit_signal(torch.randn(5, 2), b, penalty=-1.0), "penalty"),
        (lambda b: contmax.fit_signal(torch.randn(5, 2), b, penalty=0.0), "linearly dependent"),
        (lambda b: contmax.fit_signal(torch.randn(5, 2), b, positions=torch.rand(4)), "positions"),
        (lambda b: contmax.fit_signal(torch.randn(5, 2), b, grid=(5, 1)), "grid"),
        (lambda b: contmax.fit_signal(torch.randn(5, 2), b, mask=torch.ones(4, dtype=torch.bool)), "mask"),
        (lambda b: contmax.fit_signal(torch.randn(9, 2), MultivariateGaussianBasis.grid(2, 0.3)), "needs a grid"),
        (lambda b: contmax.SignalAccumulator(b).signal(), "no observations"),
    ],
)
def test_bad_input_says_what_is_wrong(call, message):
    with pytest.raises(ValueError, match=message):
        call(GaussianBasis.linspace(8, 0.2))

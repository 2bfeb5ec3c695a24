"""Signals on a GPU: the numbers of float64 on the CPU, no waiting, kept weights, CUDA graphs."""

import copy

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.signal import _fused_context, _ridge
from cuda_checks import DEVICE, F32, F64, HALVES, ON_GPU, Captured, assert_accurate, drawn, no_waiting

pytestmark = pytest.mark.gpu


def basis() -> GaussianBasis:
    return GaussianBasis.linspace(12, 0.1).to(DEVICE)


def on_each_device(psi):
    copies = {(kind, dtype): copy.deepcopy(psi).to(kind, dtype) for kind, dtype in (("cpu", F64), (DEVICE, F32))}
    return lambda like: copies[like.device.type, F64 if like.dtype == F64 else F32]


def parabola(loc):
    return contmax.densities.TruncatedParabola(loc, torch.full_like(loc, 0.1), validate_args=False)


def some():
    mask = torch.rand(3, 40, generator=torch.Generator().manual_seed(2)) > 0.4
    mask[0] = False
    return mask


def seconds():
    return torch.rand(3, 40, generator=torch.Generator().manual_seed(3))


FITS = {
    "full": ([], lambda v, psi: contmax.fit_signal(v, psi)),
    "masked": ([some()], lambda v, psi, m: contmax.fit_signal(v, psi, mask=m)),
    "positions": ([seconds()[0]], lambda v, psi, t: contmax.fit_signal(v, psi, positions=t)),
    "positions of each": ([seconds()], lambda v, psi, t: contmax.fit_signal(v, psi, positions=t)),
    "masked positions": ([seconds(), some()], lambda v, psi, t, m: contmax.fit_signal(v, psi, positions=t, mask=m)),
}


@pytest.mark.parametrize("fit", list(FITS))
@pytest.mark.parametrize("materialized", [False, True])
def test_fits(fit, materialized):
    arguments, make = FITS[fit]
    psi = on_each_device(GaussianBasis.linspace(12, 0.1))

    def asked(values, loc, *where):
        signal = make(values, psi(values), *where)
        signal = signal.materialize() if materialized else signal
        return signal.coefficients, signal(loc), signal.expectation(parabola(loc))

    assert_accurate(asked, [drawn(3, 40, 5), torch.rand(3, 4), *arguments], tolerance=5e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_fits_of_a_grid(masked):
    psi = on_each_device(MultivariateGaussianBasis.grid(5, scale=0.1))
    mask = [torch.rand(3, 42, generator=torch.Generator().manual_seed(2)) > 0.4] if masked else [None]

    def asked(values, mask):
        return contmax.fit_signal(values, psi(values), grid=(6, 7), mask=mask).coefficients

    assert_accurate(asked, [drawn(3, 42, 5), *mask], tolerance=1e-4)


@pytest.mark.parametrize("queries", [1, 3, 300])
def test_mix_in_either_order(queries):
    psi = on_each_device(GaussianBasis.linspace(12, 0.1))

    def asked(values, r):
        return contmax.fit_signal(values, psi(values)).mix(r)

    assert_accurate(asked, [drawn(3, 40, 5), torch.rand(3, queries, 12)], tolerance=5e-5)


@HALVES
def test_half_precision(dtype):
    psi = on_each_device(GaussianBasis.linspace(12, 0.1))

    def asked(values, r):
        return contmax.fit_signal(values, psi(values)).mix(r)

    assert_accurate(asked, [drawn(3, 40, 5), torch.rand(3, 4, 12)], dtype, ulps=16)


@pytest.mark.parametrize("masked", [False, True])
def test_continuous_attention(masked):
    psi = on_each_device(GaussianBasis.linspace(12, 0.1))

    def asked(values, loc, mask):
        return contmax.continuous_attention(values, parabola(loc), psi(values), mask=mask)

    assert_accurate(asked, [drawn(3, 40, 5), torch.rand(3, 4), some() if masked else None], tolerance=5e-5)


def test_a_stream():
    psi, values, at = basis(), drawn(2, 40, 3).to(DEVICE), ((torch.arange(40) + 0.5) / 40).to(DEVICE)
    stream = contmax.SignalAccumulator(psi)
    for part in (slice(0, 7), slice(7, 40)):
        stream.update(values[:, part], at[part])
    expected = contmax.fit_signal(values, psi, positions=at).coefficients
    torch.testing.assert_close(stream.signal().coefficients, expected, rtol=1e-3, atol=1e-4)


def test_kept_weights_follow_writes_that_torch_counts():
    psi, values = basis(), torch.randn(2, 40, 3, device=DEVICE)
    at = (torch.arange(40, device=DEVICE) + 0.5) / 40
    first = contmax.fit_signal(values, psi).coefficients
    torch.testing.assert_close(first, contmax.fit_signal(values, psi, positions=at).coefficients)
    with torch.no_grad():
        psi.loc.add_(0.1)
    moved = contmax.fit_signal(values, psi).coefficients
    torch.testing.assert_close(moved, contmax.fit_signal(values, psi, positions=at).coefficients)
    assert not torch.allclose(moved, first)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_reads_what_was_kept_before(ragged, kept):
    psi, values = basis(), torch.randn(2, 40, 3, device=DEVICE)
    loc, mask = torch.rand(2, device=DEVICE), some()[1:].to(DEVICE) if ragged else None
    shelves = _ridge._WEIGHTS, _ridge._TABLES

    def context():
        if not kept:
            for shelf in shelves:
                shelf.entries.clear()
        return contmax.continuous_attention(values, parabola(loc), psi, mask=mask)

    expected = context()
    graph = Captured(context)
    assert not ON_GPU or any(shelf.entries.get(psi) for shelf in shelves) == kept
    # What the graph reads must not be dropped with what is kept.
    for shelf in shelves:
        shelf.entries.clear()
    torch.full((1000, 1000), torch.nan, device=DEVICE)
    torch.testing.assert_close(graph.replay(), expected, rtol=1e-4, atol=1e-5)


def test_no_call_waits_for_the_device():
    psi, values = basis(), torch.randn(2, 40, 3, device=DEVICE)
    mask = torch.rand(2, 40, device=DEVICE) > 0.3
    times = torch.rand(2, 40, device=DEVICE)
    density = parabola(torch.rand(2, device=DEVICE))
    contmax.fit_signal(values, psi).expectation(density)
    contmax.fit_signal(values, psi, mask=mask).expectation(density)
    contmax.fit_signal(values, psi, positions=times, mask=mask).expectation(density)
    with no_waiting():
        contmax.fit_signal(values, psi).expectation(density)
        contmax.fit_signal(values, psi, mask=mask).expectation(density)
        contmax.fit_signal(values, psi, positions=times, mask=mask).expectation(density)


def test_a_signal_takes_its_basis_along():
    psi = GaussianBasis.linspace(8, 0.1)
    signal = contmax.fit_signal(torch.randn(20, 3), psi)
    there = signal.to(DEVICE)
    t = torch.rand(5)
    torch.testing.assert_close(there(t.to(DEVICE)).cpu(), signal(t), rtol=1e-4, atol=1e-4)
    assert psi.loc.device.type == "cpu"
    assert there.basis.loc.device.type == DEVICE


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("place", ["line", "plane"])
def test_the_way_of_the_commonest_calls(place, alpha, autocast, monkeypatch):
    """What it gives is what the ordinary way gives; it does not wait, and a graph can be captured of it."""
    drawing = torch.Generator().manual_seed(4)
    values = torch.randn(5, 42, 9, generator=drawing)
    if place == "line":
        attend, loc = contmax.nn.ContinuousAttention(basis(), alpha=alpha), torch.rand(5, generator=drawing)
        scale = 0.05 + 0.2 * torch.rand(5, generator=drawing)
    else:
        psi = MultivariateGaussianBasis.grid(5, scale=0.1).to(DEVICE)
        attend = contmax.nn.ContinuousAttention(psi, alpha=alpha, grid=(6, 7))
        loc, factor = torch.rand(5, 2, generator=drawing), 0.3 * torch.randn(5, 2, 2, generator=drawing)
        scale = factor @ factor.mT + 0.02 * torch.eye(2)
    tensors = [x.to(DEVICE).requires_grad_() for x in (values, loc, scale)]
    cotangent = torch.randn(5, 9, generator=drawing).to(DEVICE)
    calls, applied = [], _fused_context._apply
    monkeypatch.setattr(_fused_context, "_apply", lambda *given: calls.append(0) or applied(*given))

    def derivatives():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            context = attend(tensors[0], tuple(tensors[1:]), need_density=False)[0]
        return context.detach(), *torch.autograd.grad(context, tensors, cotangent)

    def of_second_order():
        context = attend(tensors[0], tuple(tensors[1:]), need_density=False)[0]
        first = torch.autograd.grad(context, tensors, cotangent, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), tensors)

    derivatives()
    with no_waiting():
        found = derivatives()
    second = of_second_order()
    replayed = [x.clone() for x in Captured(derivatives).replay()]
    assert not ON_GPU or len(calls) == 7
    monkeypatch.setattr(_fused_context, "_constants", lambda *given: None)
    expected = derivatives()
    for ours, again, theirs in zip(found, replayed, expected, strict=True):
        size = 1 + theirs.abs().max().item()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * size)
        torch.testing.assert_close(again, theirs, rtol=0, atol=1e-5 * size)
    for ours, theirs in zip(second, of_second_order(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4 * (1 + theirs.abs().max().item()))

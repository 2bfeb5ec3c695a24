"""Signals on a GPU: no waiting, kept weights, CUDA graphs."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.signal import _ridge

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def basis() -> GaussianBasis:
    return GaussianBasis.linspace(12, 0.1).cuda()


def test_kept_weights_follow_writes_that_torch_counts():
    psi, values = basis(), torch.randn(2, 40, 3, device="cuda")
    at = (torch.arange(40, device="cuda") + 0.5) / 40
    first = contmax.fit_signal(values, psi).coefficients
    torch.testing.assert_close(first, contmax.fit_signal(values, psi, positions=at).coefficients)
    with torch.no_grad():
        psi.loc.add_(0.1)
    moved = contmax.fit_signal(values, psi).coefficients
    torch.testing.assert_close(moved, contmax.fit_signal(values, psi, positions=at).coefficients)
    assert not torch.allclose(moved, first)


def test_a_graph_neither_fills_nor_reads_kept_weights():
    psi, values = basis(), torch.randn(2, 40, 3, device="cuda")
    loc = torch.rand(2, device="cuda")

    def context():
        density = contmax.densities.TruncatedParabola(loc, 0.1, validate_args=False)
        return contmax.continuous_attention(values, density, psi)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            context()
    torch.cuda.current_stream().wait_stream(side)
    _ridge._cache.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = context()
    assert psi not in _ridge._cache
    graph.replay()
    torch.testing.assert_close(captured, context(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        psi.loc.add_(0.05)  # the graph reads the basis as it is when it is replayed
    graph.replay()
    torch.testing.assert_close(captured, context(), rtol=1e-4, atol=1e-5)


def test_no_call_waits_for_the_device():
    psi, values = basis(), torch.randn(2, 40, 3, device="cuda")
    mask = torch.rand(2, 40, device="cuda") > 0.3
    seconds = 100 * torch.rand(2, 40, device="cuda")
    density = contmax.densities.TruncatedParabola(torch.rand(2, device="cuda"), 0.1, validate_args=False)
    attend = contmax.nn.MultiheadContinuousAttention(3, 1, psi, alpha=1.5, learnable=True).cuda()
    query = torch.randn(2, 4, 3, device="cuda")
    attend(query, values)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        contmax.fit_signal(values, psi).expectation(density)
        contmax.fit_signal(values, psi, positions=seconds, mask=mask).expectation(density)
        attend(query, values, mask=mask)[0].sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_signal_takes_its_basis_along():
    psi = GaussianBasis.linspace(8, 0.1)
    signal = contmax.fit_signal(torch.randn(20, 3), psi)
    there = signal.to("cuda")
    t = torch.rand(5)
    torch.testing.assert_close(there(t.cuda()).cpu(), signal(t), rtol=1e-4, atol=1e-4)
    assert psi.loc.device.type == "cpu"
    assert there.basis.loc.device.type == "cuda"

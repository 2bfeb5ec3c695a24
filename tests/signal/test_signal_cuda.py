"""Signals on a GPU: no waiting, kept weights, CUDA graphs."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.signal import _kept_weights

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


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_graph_reads_kept_weights_and_keeps_none(ragged, kept):
    psi, values = basis(), torch.randn(2, 40, 3, device="cuda")
    loc = torch.rand(2, device="cuda")
    mask = torch.arange(40, device="cuda") < torch.tensor([[40], [17]], device="cuda") if ragged else None

    def context():
        density = contmax.densities.TruncatedParabola(loc, 0.1, validate_args=False)
        return contmax.continuous_attention(values, density, psi, mask=mask)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            expected = context()
    torch.cuda.current_stream().wait_stream(side)
    shelves = _kept_weights._WEIGHTS, _kept_weights._TABLES
    if not kept:
        for shelf in shelves:
            shelf.kept.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = context()
    assert any(shelf.kept.get(psi) for shelf in shelves) == kept
    # What the graph reads must not be dropped with what is kept.
    for shelf in shelves:
        shelf.kept.clear()
    torch.randn(1000, 1000, device="cuda")
    graph.replay()
    torch.testing.assert_close(captured, expected, rtol=1e-4, atol=1e-5)


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
        contmax.fit_signal(values, psi, mask=mask).expectation(density)
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

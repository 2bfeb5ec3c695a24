"""Constants that are kept on a GPU: made on one stream, read on another, and dropped while they are being read."""

import gc

import pytest
import torch

import contmax
from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from cuda_checks import DEVICE, F64, ON_GPU, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not ON_GPU, reason="needs the streams of a GPU")]
# Cycles: about a second, in which the host launches all that a test has.
LONG = 2_000_000_000


def line():
    return GaussianBasis.linspace(12, 0.1).to(DEVICE)


def plane():
    return MultivariateGaussianBasis.grid(4, 0.2).to(DEVICE)


def on_line(dtype=torch.float32):
    return torch.linspace(0.1, 0.9, 8, dtype=dtype, device=DEVICE), torch.full((8,), 0.2, dtype=dtype, device=DEVICE)


def on_plane():
    return torch.rand(8, 2, device=DEVICE), (0.05 * torch.eye(2, device=DEVICE)).expand(8, 2, 2).contiguous()


def line_means(alpha, dtype=torch.float32):
    basis, pair = line().to(dtype), on_line(dtype)
    return lambda: contmax.expectation(BetaGaussian(*pair, alpha, validate_args=False), basis)


def plane_means():
    basis, pair = plane(), on_plane()
    return lambda: contmax.expectation(MultivariateBetaGaussian(*pair, 2.0, validate_args=False), basis)


def fitted(masked):
    basis, values = line(), drawn(3, 40, 5).to(DEVICE)
    mask = (torch.arange(40) < torch.tensor([[40], [7], [23]])).to(DEVICE) if masked else None
    return lambda: contmax.fit_signal(values, basis, mask=mask).coefficients


def attended(basis, pair, grid):
    attend, values = nn.ContinuousAttention(basis, grid=grid), drawn(8, 42, 5).to(DEVICE)
    return lambda: attend(values, pair, need_density=False)[0]


CALLS = {
    "rule on the line": lambda: line_means(1.5),
    "rules for every α": lambda: line_means(torch.linspace(1.2, 2.2, 8, device=DEVICE)),
    "tables in float64": lambda: line_means(1.5, F64),
    "path on the plane": plane_means,
    "ridge weights": lambda: fitted(False),
    "ridge weights of all lengths": lambda: fitted(True),
    "context on the line": lambda: attended(line(), on_line(), None),
    "context on the plane": lambda: attended(plane(), on_plane(), (6, 7)),
}


def forget_constants(monkeypatch):
    """Let the caches of rules and tables be empty; ridge weights are kept for a basis."""
    from contmax.kernels.means import _gpu_any_alpha as _any_alpha
    from contmax.kernels.means import _gpu_line as _line
    from contmax.kernels.means import _gpu_plane as _plane
    from contmax.numerics import _quadrature

    for cache in (_quadrature._tables, _line.rule_of, _any_alpha.rules_on, _plane.rule_of):
        monkeypatch.setattr(cache, "_made", {})


def blocks_of_nan():
    """Memory of the current stream, in the smallest blocks there are: all that is free for constants."""
    return [torch.full((512,), 255, dtype=torch.uint8, device=DEVICE) for _ in range(2**14)]


@pytest.mark.parametrize("name", CALLS)
def test_a_stream_waits_for_constants_of_another(name, monkeypatch):
    def fresh():
        """The call, with a basis for which nothing is kept."""
        forget_constants(monkeypatch)
        torch.manual_seed(0)
        made = CALLS[name]()
        torch.cuda.synchronize()
        return made

    side = torch.cuda.Stream()
    expected = fresh()()
    call = fresh()
    with torch.cuda.stream(side):  # loads what libraries keep for each stream
        call()
    call = fresh()
    with torch.cuda.stream(side):
        blocks_of_nan()  # the next constants take this memory
        torch.cuda._sleep(LONG)
        first = call()
    second = call()
    assert not side.query(), "the host has waited, so that the test shows nothing"
    torch.cuda.synchronize()
    for result in (first, second):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_dropped_weights_stay_until_every_stream_has_read_them():
    basis, values = line(), drawn(3, 40, 5).to(DEVICE)
    expected = contmax.fit_signal(values, basis).coefficients
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        fitted(masked=False)()  # loads what libraries keep for each stream
    blocks_of_nan()  # a kernel that is not loaded yet would wait for those that run
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        result = contmax.fit_signal(values, basis).coefficients
    del basis
    gc.collect()
    blocks_of_nan()
    assert not side.query(), "the host has waited, so that the test shows nothing"
    torch.cuda.synchronize()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)

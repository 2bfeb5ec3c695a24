"""Devices without float64, such as Apple's GPUs: each function computes without it, or says in words that it cannot.

The meta device stands in for them, under a mode that refuses float64 there as torch does on mps.
"""

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import contmax
from contmax import _eager
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.densities import BetaGaussian, MultivariateBetaGaussian, TruncatedParabola
from contmax.losses import fenchel_young
from contmax.maps._backend import _max_reference
from contmax.maps._jacobian import pull_back_reference

META = torch.device("meta")


class _NoFloat64(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.is_meta and x.dtype == torch.float64:
                raise TypeError(f"Cannot convert a MPS Tensor to float64 dtype ({func})")
        return result


class _Dtypes(TorchDispatchMode):
    """Notes the dtypes of all results."""

    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self._seen += [x.dtype for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        return result


@contextlib.contextmanager
def _without_float64(monkeypatch):
    monkeypatch.setattr(_eager, "WITHOUT_FLOAT64", {"meta"})
    with _NoFloat64():
        yield


def _x(*shape):
    return torch.randn(*shape, device=META, requires_grad=True)


def _classes():
    return torch.zeros(3, dtype=torch.long, device=META)


def _parabola():
    return TruncatedParabola(_x(3), _x(3).exp())


LINE, PLANE = GaussianBasis.covering(8), MultivariateGaussianBasis.covering(3)
COMPUTED = {
    "sparsemax": lambda: contmax.sparsemax(_x(3, 5)),
    "entmax": lambda: contmax.entmax(_x(3, 5), 1.3, mask=torch.ones(3, 5, dtype=torch.bool, device=META)),
    "entmax beyond 2": lambda: contmax.entmax(_x(3, 5), 3.0),
    "entmax with a tensor alpha": lambda: contmax.entmax(_x(3, 5), _x(3, 1).sigmoid() + 1),
    "entmax_loss": lambda: contmax.losses.entmax_loss(_x(3, 5), _classes(), 1.5),
    "entmax_loss smoothed": lambda: contmax.losses.entmax_loss(_x(3, 5), _classes(), 1.5, label_smoothing=0.1),
    "entmax_loss of soft targets": lambda: contmax.losses.entmax_loss(_x(3, 5), _x(3, 5).softmax(-1), 0.5),
    "linear_entmax_loss": lambda: contmax.losses.linear_entmax_loss(_x(3, 5), _x(7, 5), _classes(), alpha=1.5),
    "entmax_attention": lambda: contmax.entmax_attention(
        _x(2, 2, 6, 4), _x(2, 2, 6, 4), _x(2, 2, 6, 4), is_causal=True
    ),
    "a density's entropy": lambda: _parabola().entropy(),
    "a density's samples": lambda: BetaGaussian(_x(3), _x(3).exp(), 1.5).rsample(),
    "an expectation on the line": lambda: contmax.expectation(_parabola(), LINE.to(META)),
    "an expectation on the plane": lambda: contmax.expectation(
        MultivariateBetaGaussian(_x(3, 2), alpha=1.3, scale_tril=torch.eye(2, device=META)), PLANE.to(META)
    ),
    "BagPooling": lambda: contmax.nn.BagPooling(4).to(META)(_x(2, 6, 4))[0],
}
REFUSED = {
    "a signal": lambda: contmax.fit_signal(_x(2, 20, 4), LINE.to(META)),
    "ContinuousAttention": lambda: contmax.nn.ContinuousAttention(LINE, embed_dim=4).to(META)(_x(2, 20, 4)),
    "an expectation with any alpha": lambda: contmax.expectation(BetaGaussian(_x(3), _x(3).exp(), 1.3), LINE.to(META)),
    "an expectation of another density": lambda: contmax.expectation(
        contmax.densities.Triangular(_x(3), _x(3).exp()), LINE.to(META)
    ),
    "a density on the plane": lambda: MultivariateBetaGaussian(_x(3, 2), torch.eye(2, device=META), 1.5),
    "fenchel_young": lambda: fenchel_young(_parabola(), _x(3)),
    "prediction sets": lambda: contmax.output.prediction_sets(_x(3, 5), 1.0),
    "a prediction": lambda: contmax.regularized_prediction(
        _x(2, 3), contmax.domains.Knots(torch.arange(3.0, device=META))
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_what_needs_no_float64_runs_with_its_gradient(name, monkeypatch):
    with _without_float64(monkeypatch):
        result = COMPUTED[name]()
        if result.requires_grad:
            result.sum().backward()
    assert result.dtype == torch.float32


@pytest.mark.parametrize("alpha", [3.0, torch.tensor([[1.3], [2.0], [3.0]])], ids=str)
def test_what_operators_compute(alpha, monkeypatch):
    """The mode sees operators as a whole, so their functions are called here, on the CPU as if it had no float64."""
    scores, g = torch.randn(3, 5), torch.randn(3, 5)
    exact = contmax.entmax(scores.double(), alpha if isinstance(alpha, float) else alpha.double())
    grads = pull_back_reference(exact, g.double(), alpha, None, needs_alpha=True)
    monkeypatch.setattr(_eager, "WITHOUT_FLOAT64", {"cpu"})
    seen = []
    with _Dtypes(seen):
        p, gain = _max_reference(scores, alpha)
        results = pull_back_reference(p, g, alpha, None, needs_alpha=True)
    assert torch.float64 not in seen
    assert gain.dtype == torch.float32
    torch.testing.assert_close(p.double(), exact, atol=1e-5, rtol=1e-4)
    for ours, wide in zip(results, grads, strict=True):
        torch.testing.assert_close(ours.double(), wide, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_it_says_so_and_what_to_do(name, monkeypatch):
    with (
        _without_float64(monkeypatch),
        pytest.raises(NotImplementedError, match=r"float64, which meta devices do not have\. Compute it on the CPU"),
    ):
        REFUSED[name]()


def test_other_devices_have_float64():
    for name in ("cpu", "cuda", "xpu"):
        _eager.require_float64(torch.device(name))
    assert _eager.widest_dtype(torch.ones(1)) == torch.float64
    with pytest.raises(NotImplementedError, match="mps"):
        _eager.require_float64(torch.device("mps"))

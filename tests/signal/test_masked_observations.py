"""What is masked never matters to a signal: values and positions, coefficients, shares and every gradient."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from masked_checks import ALL, FILLERS, assert_never_matters

BATCH, LENGTH, WIDTH = 2, 12, 3
MASKS = {
    "of sequences": torch.arange(LENGTH) < torch.tensor([[9], [5]]),
    "of all": torch.arange(LENGTH) % 4 != 1,
    "none of one": torch.arange(LENGTH) < torch.tensor([[9], [0]]),
}


def line(learnable=False):
    return GaussianBasis.linspace(6, scale=(0.1, 0.5), learnable=learnable)


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("where", ["default", "positions", "shared positions", "plane", "grid"])
def test_signals(where, mask, filler):
    may = MASKS[mask].expand(BATCH, LENGTH)
    basis = MultivariateGaussianBasis.grid(3, scale=0.05) if where in ("plane", "grid") else line(where == "default")
    options = {"grid": (3, 4)} if where == "grid" else {}
    given, places = [torch.randn(BATCH, LENGTH, WIDTH)], [may.unsqueeze(-1)]
    if where in ("positions", "plane"):
        given.append(torch.rand(BATCH, LENGTH) if where == "positions" else torch.rand(BATCH, LENGTH, 2))
        places.append(may if where == "positions" else may.unsqueeze(-1))
    elif where == "shared positions":
        given.append(torch.rand(LENGTH))
        places.append(may.any(0))

    def call(values, positions=None):
        signal = contmax.fit_signal(values, basis, positions=positions, mask=MASKS[mask], **options)
        density = contmax.densities.TruncatedParabola(torch.full((BATCH,), 0.4), 0.2)
        if basis.event_dim == 1:
            read, mean = signal(torch.linspace(0, 1, 5)), signal.expectation(density)
        else:
            read, mean = signal(torch.rand(5, 2)), signal.mix(torch.rand(BATCH, basis.num_functions))
        return signal.coefficients, signal.explained_variance(), read, mean

    assert_never_matters(call, given, places, filler, basis)


@pytest.mark.parametrize("mask", MASKS)
def test_accumulated_signals(mask):
    may = MASKS[mask].expand(BATCH, LENGTH)

    def call(values, positions):
        stream = contmax.SignalAccumulator(line())
        for part in (slice(0, 5), slice(5, LENGTH)):
            stream.update(values[:, part], positions[:, part], may[:, part])
        signal = stream.signal()
        return signal.coefficients, signal.explained_variance()

    given = [torch.randn(BATCH, LENGTH, WIDTH), torch.rand(BATCH, LENGTH)]
    assert_never_matters(call, given, [may.unsqueeze(-1), may], ALL)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize("mask", MASKS)
def test_contexts_by_triton(mask):
    may = MASKS[mask].expand(BATCH, LENGTH)
    density = contmax.densities.TruncatedParabola(torch.full((BATCH,), 0.4), 0.2)
    basis = line()

    def call(values):
        return [contmax.continuous_attention(values, density, basis, mask=MASKS[mask])]

    assert_never_matters(call, [torch.randn(BATCH, LENGTH, WIDTH)], [may.unsqueeze(-1)], ALL)

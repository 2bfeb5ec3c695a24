"""Weights that are kept from one fit to the next: only for the same fit, whatever happens to the basis meanwhile."""

import sys
import threading

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis
from contmax.signal import _ridge

F64 = torch.float64


def at(length: int) -> torch.Tensor:
    return (torch.arange(length, dtype=F64) + 0.5) / length


def test_each_penalty_and_each_dtype_has_weights_of_its_own():
    basis, values = GaussianBasis.linspace(8, 0.1), torch.randn(30, 2, dtype=F64)
    for penalty in (0.01, 1.0, 0.01):
        for dtype in (torch.float32, F64, torch.float32):
            kept = contmax.fit_signal(values.to(dtype), basis, penalty=penalty).coefficients
            fresh = contmax.fit_signal(values.to(dtype), basis, positions=at(30), penalty=penalty).coefficients
            assert kept.dtype == fresh.dtype == dtype
            torch.testing.assert_close(kept, fresh, rtol=1e-12 if dtype == F64 else 1e-5, atol=1e-9)


def test_tables_of_lengths_have_a_penalty_and_a_dtype_too():
    basis, values = GaussianBasis.linspace(8, 0.1), torch.randn(2, 30, 2, dtype=F64)
    mask = torch.arange(30) < torch.tensor([[30], [12]])
    for penalty in (0.01, 1.0, 0.01):
        for dtype in (torch.float32, F64, torch.float32):
            kept = contmax.fit_signal(values.to(dtype), basis, mask=mask, penalty=penalty).coefficients
            fresh = contmax.fit_signal(values[1, :12].to(dtype), basis, positions=at(12), penalty=penalty).coefficients
            assert kept.dtype == dtype
            torch.testing.assert_close(kept[1], fresh, rtol=1e-12 if dtype == F64 else 1e-5, atol=1e-9)


@pytest.mark.parametrize("masked", [False, True])
def test_the_penalty_of_kept_weights_is_relative_to_the_volume(masked):
    """The cache is made for default positions, those of [0, 1], on which this basis has a volume of 3."""
    basis, values = GaussianBasis.linspace(12, 0.2, low=-1.0, high=2.0), torch.randn(30, 2, dtype=F64)
    mask = torch.ones(30, dtype=torch.bool) if masked else None
    with pytest.warns(UserWarning, match="spread over"):
        kept = contmax.fit_signal(values, basis, mask=mask).coefficients
    torch.testing.assert_close(kept, contmax.fit_signal(values, basis, positions=at(30)).coefficients)


def test_a_write_that_torch_does_not_count_is_seen_on_the_cpu():
    basis, values = GaussianBasis.linspace(8, 0.1), torch.randn(30, 2)
    first = contmax.fit_signal(values, basis).coefficients
    basis.loc.data.add_(0.1)
    moved = contmax.fit_signal(values, basis).coefficients
    torch.testing.assert_close(moved, contmax.fit_signal(values, basis, positions=at(30)).coefficients)
    assert not torch.allclose(moved, first)


@pytest.mark.parametrize("change", ["written to", "replaced", "other data", "other data where some was", "moved on"])
def test_changes_are_seen_where_values_are_not_compared(monkeypatch, change):
    """As on an accelerator: the same tensors, to which nothing was written, count as unchanged."""
    monkeypatch.setattr(_ridge, "is_eager_cpu", lambda *values: False)
    basis, values = GaussianBasis.linspace(8, 0.1), torch.randn(30, 2)
    first = contmax.fit_signal(values, basis).coefficients
    assert torch.equal(contmax.fit_signal(values, basis).coefficients, first)
    moved = basis.loc + 0.1
    with torch.no_grad():
        if change == "written to":
            basis.loc.copy_(moved)
        elif change == "replaced":
            basis.loc = moved
        elif change == "other data":
            basis.loc.data = moved
        elif change == "other data where some was":
            address, tried = basis.loc.data_ptr(), [moved]
            basis.loc.data = torch.zeros(8)
            while tried[-1].data_ptr() != address and len(tried) < 1000:  # does it find the place, given back?
                tried.append(moved.clone())
            basis.loc.data = tried[-1]
        else:
            basis.to(F64)
            basis.loc.add_(0.1)
            basis.float()
    again = contmax.fit_signal(values, basis).coefficients
    torch.testing.assert_close(again, contmax.fit_signal(values, basis, positions=at(30)).coefficients)
    assert not torch.allclose(again, first)


def test_nothing_is_found_for_constants_that_are_vmapped(monkeypatch):
    monkeypatch.setattr(_ridge, "is_eager_cpu", lambda *values: False)

    class Fit(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.basis = GaussianBasis.linspace(8, 0.1)

        def forward(self, values, positions=None):
            return contmax.fit_signal(values, self.basis, positions=positions).coefficients

    fit, values, shifts = Fit(), torch.randn(30, 2), torch.tensor([0.0, 0.1])

    def shifted(shift, positions=None):
        return torch.func.functional_call(fit, {"basis.loc": fit.basis.loc + shift}, (values, positions))

    torch.testing.assert_close(fit(values), shifted(0.0, at(30)))
    expected = torch.stack([shifted(shift, at(30)) for shift in shifts])
    torch.testing.assert_close(torch.vmap(shifted)(shifts), expected, rtol=1e-4, atol=1e-4)


def test_weights_are_computed_once(monkeypatch):
    basis, values, calls = GaussianBasis.linspace(8, 0.1), torch.randn(30, 2), []
    compute = _ridge.ridge_fit
    monkeypatch.setattr(_ridge, "ridge_fit", lambda *arguments: calls.append(0) or compute(*arguments))
    for _ in range(3):
        contmax.fit_signal(values, basis)
    assert len(calls) == 1
    for length in range(1, 40):  # more than are kept
        contmax.fit_signal(torch.randn(length, 2), basis)
    contmax.fit_signal(values, basis)
    assert len(_ridge._WEIGHTS.entries[basis]) == _ridge._WEIGHTS.maxsize
    assert len(calls) == 1 + 39


def test_threads_share_it():
    """Many lengths in many threads: dropping one entry while another is looked up must not fail."""
    basis, failures = GaussianBasis.linspace(4, 0.3), []
    expected = {n: contmax.fit_signal(torch.ones(n, 1), basis, positions=at(n)).coefficients for n in range(1, 41)}

    def work(seed: int) -> None:
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed)) + 1
        try:
            for n in order.tolist() * 3:
                got = contmax.fit_signal(torch.ones(n, 1), basis).coefficients
                torch.testing.assert_close(got, expected[n], rtol=1e-4, atol=1e-5)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns within a look-up
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []


def test_nothing_is_kept_of_tensors_without_values():
    basis = GaussianBasis.linspace(4, 0.3).to("meta")
    signal = contmax.fit_signal(torch.randn(2, 9, 3, device="meta"), basis)
    assert signal.coefficients.shape == (2, 4, 3)
    assert basis not in _ridge._WEIGHTS.entries
    attend = contmax.nn.MultiheadContinuousAttention(4, 2, basis).to("meta")
    values = torch.randn(2, 9, 4, device="meta")
    assert attend(values, values, mask=torch.ones(2, 9, dtype=torch.bool, device="meta"))[0].shape == (2, 9, 4)

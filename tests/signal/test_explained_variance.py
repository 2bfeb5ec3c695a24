"""How much of the variance of the observations a signal explains."""

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis

BASIS = GaussianBasis.linspace(12, scale=0.08)


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def share(values, signal, positions, mask=None):
    """As scikit-learn counts it: channels weigh as much as they vary."""
    from sklearn.metrics import r2_score  # takes two seconds to import, which no graph needs

    fitted = signal(positions)
    rows = []
    for row in range(len(values)):
        kept = slice(None) if mask is None else mask[row]
        points = fitted[row][kept].detach().numpy()
        rows.append(r2_score(values[row][kept].numpy(), points, multioutput="variance_weighted"))
    return torch.tensor(rows, dtype=torch.float64)


def test_a_basis_that_is_too_coarse_says_so():
    values = torch.sin(60 * torch.linspace(0, 1, 200))[:, None] + 3
    coarse = contmax.fit_signal(values, GaussianBasis.linspace(8, scale=0.1))
    fine = contmax.fit_signal(values, GaussianBasis.linspace(64, scale=1 / 64))
    assert coarse.explained_variance() < 0.1
    assert fine.explained_variance() > 0.99


def test_against_scikit_learn():
    from sklearn.linear_model import Ridge
    from sklearn.metrics import r2_score

    values = noise(3, 40, 5).cumsum(-2) + 2
    positions = (torch.arange(40, dtype=torch.float64) + 0.5) / 40
    signal = contmax.fit_signal(values, BASIS, penalty=0.1)
    expected = share(values, signal, positions)
    torch.testing.assert_close(signal.explained_variance(), expected, rtol=1e-6, atol=1e-6)
    design = BASIS(positions).double().numpy()
    ridge = Ridge(alpha=0.1, fit_intercept=False).fit(design, values[0].numpy())
    ridge_share = r2_score(values[0].numpy(), ridge.predict(design), multioutput="variance_weighted")
    assert float(signal.explained_variance()[0]) == pytest.approx(ridge_share, abs=1e-6)


def test_masks_and_positions():
    values = noise(3, 40, 5).cumsum(-2)
    positions = noise(3, 40).abs().clamp(max=1)
    mask = noise(3, 40) > -0.5
    signal = contmax.fit_signal(values, BASIS, positions=positions, mask=mask)
    torch.testing.assert_close(
        signal.explained_variance(), share(values, signal, positions, mask), rtol=1e-6, atol=1e-6
    )
    # What is masked counts nothing, whatever it is.
    spoiled = torch.where(mask[..., None], values, torch.nan)
    where = torch.where(mask, positions, torch.nan)
    again = contmax.fit_signal(spoiled, BASIS, positions=where, mask=mask)
    torch.testing.assert_close(again.explained_variance(), signal.explained_variance())
    ranks = contmax.fit_signal(values, BASIS, mask=mask).explained_variance()
    for row in range(3):
        alone = contmax.fit_signal(values[row][mask[row]], BASIS).explained_variance()
        torch.testing.assert_close(ranks[row], alone, rtol=1e-6, atol=1e-6)


def test_a_grid():
    plane = MultivariateGaussianBasis.grid(4, scale=0.2)
    values = noise(2, 30, 3)
    signal = contmax.fit_signal(values, plane, grid=(5, 6))
    rows, columns = (torch.arange(5) + 0.5) / 5, (torch.arange(6) + 0.5) / 6
    positions = torch.cartesian_prod(rows, columns).double()
    torch.testing.assert_close(signal.explained_variance(), share(values, signal, positions), rtol=1e-6, atol=1e-6)


def test_nothing_to_explain_is_explained():
    for value in (0.0, 5.0, 1e-30, 0.1):
        for dtype in (torch.float32, torch.float64):
            values = torch.full((2, 30, 3), value, dtype=dtype)
            assert (contmax.fit_signal(values, BASIS).explained_variance() == 1).all()
    mask = torch.tensor([[True] * 30, [False] * 30, [True] + [False] * 29])
    shares = contmax.fit_signal(noise(3, 30, 2), BASIS, mask=mask).explained_variance()
    assert (shares[1:] == 1).all()
    assert shares[0] < 1


def test_nothing_to_explain_in_a_stream_is_explained():
    """The sum of squares less the square of the sum leaves a rounding, of either sign, which is no variance."""
    left = []
    for value in (0.1, 1 / 3, 1000.7):
        for length in (7, 30, 101):
            values = torch.full((length, 2), value, dtype=torch.float64)
            stream = contmax.SignalAccumulator(BASIS)
            stream.update(values, torch.linspace(0, 1, length))
            assert stream.signal().explained_variance() == 1
            left.append(float(values.square().sum() - values.sum(0).square().sum() / length))
    assert max(left) > 0


def test_a_fit_worse_than_the_mean_is_negative():
    share = contmax.fit_signal(noise(1, 60, 2) + 100, BASIS, penalty=1e4).explained_variance()
    assert share.isfinite().all()
    assert (share < 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_and_moves(dtype):
    values = noise(2, 40, 3).cumsum(-2)
    expected = contmax.fit_signal(values, BASIS).explained_variance()
    signal = contmax.fit_signal(values.to(dtype), BASIS)
    result = signal.explained_variance()
    assert result.dtype == torch.promote_types(dtype, torch.float32)
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-9}[dtype]
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(signal.detach().explained_variance(), result)
    torch.testing.assert_close(signal.to(torch.float64).explained_variance(), result.double(), rtol=0, atol=tolerance)


def test_gradients_reach_the_observations():
    values = noise(12, 2).requires_grad_()
    positions = noise(12).sigmoid().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda h, t: contmax.fit_signal(h, BASIS, positions=t).explained_variance(), (values, positions)
    )
    assert not contmax.fit_signal(values, BASIS).detach().explained_variance().requires_grad
    constant = torch.ones(8, 2, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(contmax.fit_signal(constant, BASIS).explained_variance(), constant)
    assert (gradient == 0).all()


def test_a_stream_explains_what_one_fit_does():
    values, positions = noise(2, 90, 3).cumsum(-2) + 4, torch.linspace(0, 1, 90, dtype=torch.float64)
    mask = noise(2, 90) > -1
    expected = contmax.fit_signal(values, BASIS, positions=positions, mask=mask).explained_variance()
    first, second = contmax.SignalAccumulator(BASIS), contmax.SignalAccumulator(BASIS)
    for stream, start in ((first, 0), (second, 30), (first, 60)):
        part = slice(start, start + 30)
        stream.update(values[:, part], positions[part], mask[:, part])
    first.merge(second)
    signal = first.signal()
    torch.testing.assert_close(signal.explained_variance(), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(signal.materialize().explained_variance(), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(signal.to(torch.float32).explained_variance(), expected.float(), rtol=0, atol=1e-6)


def test_after_materialize_the_observations_are_gone():
    signal = contmax.fit_signal(noise(20, 2), BASIS).materialize()
    with pytest.raises(ValueError, match=r"no longer has its observations.* before materialize\(\)"):
        signal.explained_variance()


@pytest.mark.graph
def test_compiles():
    values, mask = noise(2, 20, 3), torch.arange(20) < 15

    def explained(values):
        return contmax.fit_signal(values, BASIS, mask=mask.expand(2, 20)).explained_variance()

    compiled = torch.compile(explained, fullgraph=True, backend="aot_eager_default_partitioner")(values)
    torch.testing.assert_close(compiled, explained(values))

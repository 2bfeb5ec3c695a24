"""Expectations on the plane and in space at the golden values: value and gradients, in float64 and in float32."""

import pytest
import torch
from torch.distributions import MultivariateNormal

import contmax
from contmax.basis import MultivariateGaussianBasis
from contmax.densities import MultivariateBetaGaussian, TruncatedParaboloid

F64 = torch.float64
TOLERANCE = {torch.float64: (1e-10, 1e-12), torch.float32: (2e-5, 2e-6)}


def array(entries):
    return torch.tensor(
        [[float(x) for x in row] if isinstance(row, list) else float(row) for row in entries], dtype=F64
    )


def with_gradients(loc, scale_matrix, alpha, centre, covariance):
    loc, scale_matrix = loc.clone().requires_grad_(), scale_matrix.clone().requires_grad_()
    r = contmax.expectation(
        MultivariateBetaGaussian(loc, scale_matrix, alpha), MultivariateGaussianBasis(centre[None], covariance)
    )
    return r.detach(), *torch.autograd.grad(r.sum(), (loc, scale_matrix))


def check(case, alpha, dtype):
    inputs = [array(case["inputs"][name]) for name in ("mu", "Sigma", "mu_j", "Sigma_j")]
    loc, scale_matrix, centre, covariance = (x.to(dtype) for x in inputs)
    got = with_gradients(loc, scale_matrix, alpha, centre, covariance)
    if dtype == F64:
        expected = [torch.tensor([float(case["outputs"]["r"])], dtype=F64)]
        expected += [array(case["outputs"][name]) for name in ("d_mu", "d_Sigma")]
    else:
        expected = with_gradients(
            *(x.double() for x in (loc, scale_matrix)), alpha, centre.double(), covariance.double()
        )
    top = with_gradients(*inputs[:2], alpha, inputs[0], inputs[3])[0].item()
    narrow = torch.linalg.eigvalsh(inputs[3])[0].item()
    sizes = (top, top / narrow**0.5, top / torch.linalg.eigvalsh(inputs[1])[0].item())
    relative, absolute = TOLERANCE[dtype]
    for mine, truth, size in zip(got, expected, sizes, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), truth.double(), rtol=relative, atol=absolute * size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_gaussians(golden, dtype):
    for case in golden["cont_softmax"]:
        if len(case["inputs"]["mu"]) > 1:
            check(case, 1.0, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_beta_gaussians_on_the_plane(golden, dtype):
    for case in golden["cont_entmax_2d"]:
        check(case, float(case["inputs"]["alpha"]), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_golden_balls_in_any_dimension(golden, dtype):
    for case in golden["cont_entmax_ball_isotropic"]:
        inputs, dim = case["inputs"], case["inputs"]["D"]
        loc = torch.full((dim,), float(inputs["dist"]) / dim**0.5, dtype=F64)
        eye = torch.eye(dim, dtype=F64)
        parts = [loc, eye * float(inputs["c"]), torch.zeros(dim, dtype=F64), eye * float(inputs["s"]) ** 2]
        loc, scale_matrix, centre, covariance = (x.to(dtype) for x in parts)
        alpha = float(inputs["alpha"])
        density = MultivariateBetaGaussian(loc, scale_matrix, alpha)
        r = contmax.expectation(density, MultivariateGaussianBasis(centre[None], covariance))
        top = with_gradients(*parts[:2], alpha, parts[0], parts[3])[0].item()
        relative, absolute = TOLERANCE[dtype]
        assert r.item() == pytest.approx(float(case["outputs"]["r"]), rel=relative, abs=absolute * top)


def test_the_same_density_under_its_other_names(golden):
    case = golden["cont_entmax_2d"][0]["inputs"]
    loc, matrix = array(case["mu"]), array(case["Sigma"])
    basis = MultivariateGaussianBasis(array(case["mu_j"])[None], array(case["Sigma_j"]))
    paraboloid = contmax.expectation(TruncatedParaboloid(loc, matrix), basis)
    torch.testing.assert_close(
        paraboloid, contmax.expectation(MultivariateBetaGaussian(loc, matrix, 2.0), basis), rtol=1e-14, atol=0
    )
    gaussian = contmax.expectation(MultivariateNormal(loc, matrix), basis)
    torch.testing.assert_close(
        gaussian, contmax.expectation(MultivariateBetaGaussian(loc, matrix, 1.0), basis), rtol=1e-14, atol=0
    )

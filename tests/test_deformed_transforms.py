"""The deformed calculus under vmap, jacrev, jacfwd, torch.compile and torch.export."""

import pytest
import torch
from torch import Tensor

from contmax.deformed import escort, exp_beta, expm1_over, log1p_over, log_beta, mean_u_exp, tsallis_negentropy


def pipeline(u: Tensor, beta: Tensor) -> Tensor:
    """Every function of the module, on one row."""
    p = escort(exp_beta(u, beta), beta + 0.5)
    blocks = (log1p_over(p) + expm1_over(u) + mean_u_exp(u)).sum(-1)
    return tsallis_negentropy(p, beta + 1) + log_beta(p + 0.1, beta).sum(-1) + blocks


def test_transforms_agree_with_loops():
    u, beta = torch.rand(5, 4, dtype=torch.float64), torch.tensor([0.2, 0.8, 1.0, 1.3, 1.7], dtype=torch.float64)
    torch.testing.assert_close(
        torch.vmap(pipeline)(u, beta), torch.stack([pipeline(*row) for row in zip(u, beta, strict=True)])
    )
    jacobian = torch.vmap(torch.func.jacrev(pipeline, argnums=(0, 1)))(u, beta)
    forward = torch.vmap(torch.func.jacfwd(pipeline, argnums=(0, 1)))(u, beta)
    torch.testing.assert_close(jacobian, forward)
    torch.vmap(torch.func.hessian(pipeline))(u, beta)


@pytest.mark.graph
def test_compiles_and_exports_in_one_graph():
    u, beta = torch.rand(6), torch.tensor(1.3)
    want = pipeline(u, beta)
    # Ordinary operations all of them: torch knows how to trace their derivatives.
    compiled = torch.compile(pipeline, fullgraph=True, backend="eager")
    with_grad = u.clone().requires_grad_()
    got = compiled(with_grad, beta)
    torch.testing.assert_close(got, want)
    got.backward()
    torch.testing.assert_close(with_grad.grad, torch.func.grad(pipeline)(u, beta))

    class Pipeline(torch.nn.Module):
        def forward(self, u: Tensor, beta: Tensor) -> Tensor:
            return pipeline(u, beta) + log_beta(u, 1.5).sum()

    length = torch.export.Dim("length", min=2)
    exported = torch.export.export(Pipeline(), (u, beta), dynamic_shapes={"u": {0: length}, "beta": None}).module()
    longer = torch.rand(9)
    torch.testing.assert_close(exported(longer, beta), Pipeline()(longer, beta))

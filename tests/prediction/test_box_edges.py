"""Places of predictions on boxes that no other test reaches: each goes red under a fault that the others let pass."""

import pytest
import torch

import contmax
from contmax.domains import Box

F64 = torch.float64


@pytest.mark.parametrize("axes", [1, 2])
def test_a_cell_with_a_single_node_without_score_has_no_mass(axes):
    domain = Box(torch.zeros(axes, dtype=F64), torch.ones(axes, dtype=F64), resolution=4)
    # The border at 0.3 cuts the second of four cells, whose other nodes have a score.
    p = contmax.regularized_prediction(torch.where(domain.nodes[:, 0] < 0.3, -torch.inf, 0.0), domain, 2.0)
    t = torch.full((3, axes), 0.6, dtype=F64)
    t[:, 0] = torch.tensor([0.1, 0.45, 0.8], dtype=F64)
    torch.testing.assert_close(p.density(t), torch.tensor([0.0, 0.0, 2.0], dtype=F64), rtol=1e-6, atol=0)

"""Places of predictions on boxes that no other test reaches: each goes red under a fault that the others let pass."""

import pytest
import torch

import contmax
from contmax.domains import Box
from contmax.prediction import _box

F64 = torch.float64


@pytest.mark.parametrize("axes", [1, 2])
def test_a_cell_with_a_single_node_without_score_has_no_mass(axes):
    domain = Box(torch.zeros(axes, dtype=F64), torch.ones(axes, dtype=F64), resolution=4)
    # The border at 0.3 cuts the second of four cells, whose other nodes have a score.
    p = contmax.regularized_prediction(torch.where(domain.nodes[:, 0] < 0.3, -torch.inf, 0.0), domain, 2.0)
    t = torch.full((3, axes), 0.6, dtype=F64)
    t[:, 0] = torch.tensor([0.1, 0.45, 0.8], dtype=F64)
    torch.testing.assert_close(p.density(t), torch.tensor([0.0, 0.0, 2.0], dtype=F64), rtol=1e-6, atol=0)


@pytest.mark.parametrize("axes", [1, 2])
def test_draws_are_proposed_under_a_bound_of_the_density(axes):
    domain = Box(torch.zeros(axes, dtype=F64), torch.ones(axes, dtype=F64), resolution=5)
    x, y = domain.nodes[:, 0], domain.nodes[:, -1]
    slopes, borders = torch.tensor([[0.0], [6.0], [-9.0]], dtype=F64), torch.tensor([[0.15], [0.35], [0.7]], dtype=F64)
    scores = torch.where(x < borders, -torch.inf, slopes * x + torch.sin(7 * y))
    p = contmax.regularized_prediction(scores, domain, 1.5)
    bounds = _box.density_bounds(p._interpolant, p._unit_normalizer, p._index)
    place = torch.rand(20_000, 3, axes, dtype=F64, generator=torch.Generator().manual_seed(0)) * 5
    cell = (place.long() * torch.tensor([5, 1])[2 - axes :]).sum(-1)
    bound = bounds.gather(-1, cell.T).T
    density = p.density(place / 5)
    assert bool((density <= bound * (1 + 1e-9)).all())


def test_a_small_support_is_checked_where_it_lies():
    """Of points all over the box hardly one falls into a support this small: the density's own points see the cone."""
    box = Box(torch.full((2,), -1.0, dtype=F64), torch.full((2,), 1.0, dtype=F64))
    centre = torch.tensor([0.05, -0.03], dtype=F64)
    with pytest.raises(ValueError, match="of its mass would be misplaced"):
        contmax.regularized_prediction(lambda t: -3e5 * ((t - centre).square().sum(-1) + 1e-6).sqrt(), box, 2.0)


def test_slopes_of_an_interpolant_are_those_of_the_polynomial():
    domain = Box(torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64), resolution=2)

    def score(t):
        x, y, z = t.unbind(-1)
        return x**3 * y**2 - 2 * x * y * z + z**2 * y

    interpolant = contmax.regularized_prediction(score(domain.nodes), domain, 2.0)._interpolant
    t = torch.rand(4, 3, dtype=F64)
    slopes = interpolant.slopes(t).movedim(0, -1)
    torch.testing.assert_close(slopes, torch.func.vmap(torch.func.grad(score))(t))


@pytest.mark.parametrize("mass", [0.99, 1.01])
def test_a_rule_that_disagrees_with_a_finer_one_is_reported(monkeypatch, mass):
    class Finer:
        def mass(self, partition, alpha):
            return torch.full_like(partition, mass)

    fitted = _box.fit_rule
    monkeypatch.setattr(_box, "fit_rule", lambda *given, finer=False: Finer() if finer else fitted(*given))
    domain = Box(-torch.ones(2, dtype=F64), torch.ones(2, dtype=F64), resolution=4)
    with pytest.warns(RuntimeWarning, match="about 1 % of its mass is misplaced"):
        contmax.regularized_prediction(lambda t: -t.square().sum(-1), domain, 2.0)

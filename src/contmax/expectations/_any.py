"""Any density against any basis that no other rule knows."""

from torch import Tensor
from torch.distributions import Distribution

from contmax.basis import Basis
from contmax.expectations._expectation import register_expectation
from contmax.expectations._line_any import any_basis
from contmax.expectations._space_nodes import by_box


@register_expectation(Distribution, Basis)
def any_pair(density: Distribution, basis: Basis) -> Tensor:
    """On the line between landmarks, on the plane and in space over the box that holds the density."""
    return any_basis(density, basis) if basis.event_dim == 1 else by_box(density, basis)

"""From the ways a user may give Σ to one :class:`Scale`."""

from torch import Tensor

from contmax._precision import wide_dtype
from contmax.densities._scale import DiagonalScale, Scale, scale_of_matrix, scale_of_precision, scale_of_tril
from contmax.densities._validation import require_positive


def the_one_given(given: dict[str, Tensor | None]) -> tuple[str, Tensor]:
    """Name and value of the only argument that is not None."""
    found = [(name, value) for name, value in given.items() if value is not None]
    if len(found) != 1:
        named = " and ".join(name for name, _ in found) or "none"
        raise ValueError(f"exactly one of {', '.join(given)} must be given; got {named}. Pass one of them.")
    return found[0]


def common_dim(loc: Tensor, name: str, scale: Tensor) -> int:
    """N, after the check that location and scale agree on it."""
    if loc.ndim < 1 or not loc.shape[-1]:
        raise ValueError(f"loc must be at least one-dimensional; got shape {tuple(loc.shape)}. Pass shape (..., N).")
    dim = loc.shape[-1]
    wanted = (dim,) if name == "scale_diag" else (dim, dim)
    if tuple(scale.shape[-len(wanted) :]) != wanted:
        raise ValueError(
            f"{name} must end in {wanted} to match loc of shape {tuple(loc.shape)}; got shape {tuple(scale.shape)}."
        )
    return dim


def scale_of(name: str, raw: Tensor, validate: bool) -> Scale:
    """The scale given under this name."""
    if name == "scale_diag":
        if validate:
            require_positive(name, raw, "Pass softplus(x) or the square roots of the diagonal of Σ.")
        return DiagonalScale(raw.to(wide_dtype(raw.dtype)))
    build = {"scale_matrix": scale_of_matrix, "scale_tril": scale_of_tril, "precision_matrix": scale_of_precision}
    return build[name](name, raw, validate)

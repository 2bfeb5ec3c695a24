"""Gauss–Legendre rules, and Legendre series that interpolate, differentiate and integrate sampled functions.

Small constant matrices map the values of a function at Gauss nodes to the coefficients cₘ of a Legendre series Σ cₘ Pₘ,
and cₘ to coefficients of the derivative and the antiderivative. All tables are computed once per device.
"""

from typing import Any

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.compiler import is_compiling

from contmax._caches import DeviceCache
from contmax._eager import is_exporting
from contmax._torch_private import constant_to_tracers
from contmax._typing import Float


def gauss_legendre(count: int, device: torch.device) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Nodes and weights of Gauss–Legendre quadrature on [−1, 1], float64; exact for degree 2n − 1.

    Example:
        >>> nodes, weights = gauss_legendre(3, torch.device("cpu"))
        >>> round(float((weights * nodes**4).sum()), 12)
        0.4
    """
    return device_table("nodes", count, device), device_table("weights", count, device)


def unit_gauss_legendre(count: int, device: torch.device) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Nodes and weights of Gauss–Legendre quadrature on [0, 1], float64."""
    return device_table("unit_nodes", count, device), device_table("unit_weights", count, device)


def graded_rule(count: int, device: torch.device) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    r"""Nodes and weights on [0, 1] for functions that behave like :math:`x^k`, any k > 0, at either end.

    Gauss–Legendre in u after the substitution :math:`x = \phi(u) = \int_0^u (s(1-s))^3\,ds / B(4, 4)`, which turns
    :math:`x^k dx` into :math:`u^{4k+3} du`. With 20 nodes :math:`\int x^k` has a relative error of 3e-10 at k = 1/9 and
    below 1e-14 for ½ ≤ k ≤ 4.

    Example:
        >>> nodes, weights = graded_rule(20, torch.device("cpu"))
        >>> abs(float((weights * nodes.sqrt()).sum()) - 2 / 3) < 1e-14
        True
    """
    return device_table("graded_nodes", count, device), device_table("graded_weights", count, device)


def grading(u: Any) -> Any:
    """The substitution φ(u) of :func:`graded_rule` for tensors or arrays; φ′, φ″ and φ‴ vanish at 0 and 1."""
    return u**4 * (35 + u * (-84 + u * (70 - 20 * u)))


def legendre_coefficients(values: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Coefficients c with Σ cₘ Pₘ(xᵢ) = valuesᵢ at the n Gauss nodes xᵢ."""
    return values @ device_table("transform", values.shape[-1], values.device)


def legendre_slope(coefficients: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Legendre coefficients of the derivative of Σ cₘ Pₘ; the last is 0."""
    return coefficients @ device_table("slope", coefficients.shape[-1], coefficients.device)


def legendre_to_chebyshev(coefficients: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """Coefficients c with Σ cₘ cos(m·arccos x) equal to the Legendre series at x in [−1, 1].

    Example:
        >>> legendre_to_chebyshev(torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)).float().round(decimals=6)
        tensor([0.2500, 0.0000, 0.7500])
    """
    return coefficients @ device_table("chebyshev", coefficients.shape[-1], coefficients.device)


def legendre_sum(coefficients: Float[Tensor, "... n"], x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Σ cₘ Pₘ(x) by Clenshaw's recurrence; x broadcasts with the batch of the coefficients.

    Example:
        >>> legendre_sum(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0]))
        tensor([-0.5000,  1.0000])
    """
    columns = coefficients.unbind(-1)
    if len(columns) == 1:
        return columns[0].expand(torch.broadcast_shapes(columns[0].shape, x.shape))
    last = len(columns) - 2
    ahead, value = columns[-1], torch.addcmul(columns[last], x, columns[-1], value=(2 * last + 1) / (last + 1))
    for m in range(last - 1, -1, -1):
        # Use two fused operations per step, because this loop takes most of the time of a prediction on a domain.
        rest = torch.sub(columns[m], ahead, alpha=(m + 1) / (m + 2))
        ahead, value = value, torch.addcmul(rest, x, value, value=(2 * m + 1) / (m + 1))
    return value


def legendre_basis(x: Float[Tensor, "..."], count: int) -> Float[Tensor, "... n"]:
    """P₀(x), …, Pₙ₋₁(x) along a new last dimension."""
    columns = [torch.ones_like(x), x]
    for m in range(1, count - 1):
        columns.append(torch.addcmul(-m / (m + 1) * columns[m - 1], x, columns[m], value=(2 * m + 1) / (m + 1)))
    return torch.stack(columns[:count], -1)


def spread_points(index: Float[Tensor, "n"], axes: int) -> Float[Tensor, "n N"]:
    """Points that fill the unit box evenly and lie on no grid: fractional parts of multiples of irrationals."""
    # The negative powers of the root of x^{N+1} = x + 1 give a Kronecker sequence of low discrepancy (M. Roberts).
    root = 2.0
    for _ in range(60):
        root = (1 + root) ** (1 / (axes + 1))
    step = torch.tensor([root**-axis for axis in range(1, axes + 1)], dtype=index.dtype, device=index.device)
    return (0.5 + index.unsqueeze(-1) * step) % 1


def float64_of(value: Tensor | float, like: Tensor) -> Tensor:
    """The value in float64: a tensor is cast, a number becomes a 0-d tensor on the device of `like`."""
    if isinstance(value, Tensor):
        return value if value.dtype == torch.float64 else value.double()
    # Use no torch.tensor, which would copy the number to the device while the host waits.
    return torch.full((), value, dtype=torch.float64, device=like.device)


def device_table(kind: str, count: int, device: torch.device) -> Tensor:
    """The float64 table `kind` for `count` nodes; a constant in torch.export, a graph input in torch.compile."""
    if is_exporting():
        # Make the table a constant of the exported program, because during an export the cache would store a fake one.
        return torch.tensor(_numbers(kind, count), dtype=torch.float64, device=device)
    if is_compiling():
        traced: Tensor = getattr(_Traced, _name_for_tracers(kind, count, device))
        return traced
    return _tables(kind, count, device)


@DeviceCache
def _tables(kind: str, count: int, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(_table(kind, count)))
    # Pinned memory makes the copy to an accelerator asynchronous, so that the host does not wait.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class _Traced:
    """Holds tables as attributes: torch.compile turns a tensor that it reads from an attribute into a graph input."""


@constant_to_tracers
def _name_for_tracers(kind: str, count: int, device: torch.device) -> str:
    """Store a table in an attribute of `_Traced`; return the attribute's name. torch.compile does not trace this."""
    name = f"{kind}_{count}_{device.type}_{device.index}".replace(".", "_")  # to tracers a dot is attribute access
    if not hasattr(_Traced, name):
        setattr(_Traced, name, _tables.finished(kind, count, device))
    return name


@constant_to_tracers
def _numbers(kind: str, count: int) -> list[float]:
    numbers: list[float] = _table(kind, count).tolist()
    return numbers


def _table(kind: str, count: int) -> Any:
    nodes, weights = legendre.leggauss(count)
    if kind == "nodes":
        return nodes
    if kind == "weights":
        return weights * (2 / weights.sum())
    if kind == "unit_nodes":
        return (nodes + 1) / 2
    if kind == "unit_weights":
        return weights / weights.sum()
    if kind == "graded_nodes":
        return grading((nodes + 1) / 2)
    if kind == "graded_weights":
        density = weights * (1 - nodes * nodes) ** 3
        return density / density.sum()
    if kind.startswith(("sinh", "cosh")):
        u = (np.arange(count) + 0.5) * (float(kind[5:]) / count)
        return np.sinh(u) if kind.startswith("sinh") else np.cosh(u)
    if kind == "transform":
        # The Pₘ are orthogonal under the Gauss rule too: cₘ = (m + ½) Σᵢ wᵢ f(xᵢ) Pₘ(xᵢ).
        return (legendre.legvander(nodes, count - 1) * weights[:, None]) * (np.arange(count) + 0.5)
    if kind == "chebyshev":
        # Evaluate the Legendre series at the zeros of a Chebyshev polynomial, where cosines are orthogonal.
        order = np.arange(count)
        angles = (order + 0.5) * (np.pi / count)
        cosines = np.cos(np.outer(angles, order)) * np.where(order == 0, 1, 2) / count
        return legendre.legvander(np.cos(angles), count - 1).T @ cosines
    identity = np.eye(count)
    if kind.startswith("slope"):
        slopes = np.stack([np.pad(legendre.legder(row), (0, 1))[:count] for row in identity])
        if kind == "slope":
            return slopes
        return slopes @ legendre.legvander(np.linspace(-1, 1, count + 1), count - 1).T
    rows = [legendre.legint(row, lbnd=-1) for row in identity]
    return np.stack([np.pad(row, (0, count + 1 - len(row))) for row in rows])

"""The mean of a Gaussian over the law of its scale, with derivatives to every order."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from contmax import kernels
from contmax._autograd import apply
from contmax._by_reference import may_be_differentiated
from contmax._eager import is_one_node
from contmax._vmapped import batch_first
from contmax.expectations._matrix_form import MatrixForm
from contmax.expectations._plane_form import PlaneForm
from contmax.expectations._scale_law import Law, count_nodes, place_scales, scale_nodes, stirling_factor
from contmax.expectations._scale_near_one import NEAR_ONE, mean_near_one
from contmax.numerics import SINGLE, float64_of

Form = PlaneForm | MatrixForm

# Bytes of one intermediate tensor, pairs times nodes. On a CPU it should stay in the cache and below the size from
# which malloc asks the system for fresh pages; an accelerator wants few launches.
_BLOCK_CPU, _BLOCK_ACCELERATOR = 2**17, 2**26


def mean_over_scales(form: Form, alpha: float | Tensor, dim: int, single: bool) -> Tensor:
    """The mean of N(μ; μ_j, Σ_j + V/s) over the law of s that belongs to α, without the factor of the form.

    Args:
        form: the Gaussian as a function of s, in float64 if α is a tensor or near one.
        alpha: α, a number, or a tensor whose shape is that of the pairs without the last dimension.
        dim: N, the dimension of the density.
        single: whether an error of 1e-7, not of 1e-13, is small enough.

    Returns:
        One value for each pair, differentiable in the numbers of the form and in α, through α = 1.
    """
    if torch.onnx.is_in_onnx_export() and form.pairs.dtype == torch.float64:
        raise NotImplementedError(
            f"The expectation under a density with α = {alpha} needs complex numbers in float64, for which onnxruntime "
            "has no operations. Pass α = 1, 4/3, 3/2 or 2; on the plane, in float32, any number from 1.1 to 2."
        )
    if not isinstance(alpha, Tensor):
        order = scale_order(alpha, dim)
        return mean_near_one(form, 1 / order) if abs(order) * NEAR_ONE > 1 else _mean_away_from_one(form, order, single)
    gap = float64_of(alpha, form.pairs) - 1
    eta = (gap / (1 + (1 + dim / 2) * gap)).unsqueeze(-1).expand(form.pairs.shape)
    near = eta.abs() < NEAR_ONE
    away = _mean_away_from_one(form, 1 / torch.where(near, NEAR_ONE, eta), single)
    return torch.where(near, mean_near_one(form, torch.where(near, eta, 0.0)), away)


def scale_order(alpha: float, dim: int) -> float:
    """ν = 1/(α−1) + 1 + N/2 of a number α, infinite at one."""
    return math.inf if alpha == 1 else 1 / (alpha - 1) + 1 + dim / 2


def _mean_away_from_one(form: Form, order: float | Tensor, single: bool) -> Tensor:
    """The mean over the law of s with ν = ``order``, a number or a tensor of the shape of the pairs.

    The nodes depend on the numbers of the form, yet the integral does not depend on the nodes. So they are held fixed
    and the integrand alone is differentiated; its first derivatives are summed along with the value.
    """
    inputs = (*form, order) if isinstance(order, Tensor) else tuple(form)
    fixed = None if isinstance(order, Tensor) else order
    needs_slopes = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    with torch.no_grad():
        detached = tuple(x.detach() for x in inputs)
        value, *slopes = _in_blocks(type(form), fixed, single, detached, needs_slopes)
    mean = value
    # Nothing to differentiate in a trace: there torch takes a function of any number of arguments for another one.
    if needs_slopes or not torch.compiler.is_compiling():
        mean = apply(_Mean, type(form), fixed, single, value, len(slopes), *slopes, *inputs)
    size = order.abs() if isinstance(order, Tensor) else abs(order)
    result: Tensor = mean * ((size / (2 * math.pi)) ** 0.5 * stirling_factor(order))
    return result


class _Mean(torch.autograd.Function):
    """Gives a computed mean its derivatives: the computed slopes, or differentiable ones where those are needed."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        kind: type[Form], order: float | None, single: bool, value: Tensor, count: int, *rest: Tensor
    ) -> Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.kind, ctx.order, ctx.single, _, ctx.count, *rest = inputs
        ctx.save_for_backward(*rest)
        ctx.save_for_forward(*rest)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # torch.utils.checkpoint hands them out once
        slopes, inputs = saved[: ctx.count], saved[ctx.count :]
        # A compiled backward pass is not differentiated again: there the computed slopes are enough.
        if not slopes or (may_be_differentiated() and not torch.compiler.is_compiling()):
            _, *slopes = _evaluate(ctx.kind, ctx.order, ctx.single, inputs)
        # A pair may have a matrix or a vector: trailing dimensions of the slope.
        grads = [cotangent.reshape(*cotangent.shape, *(1,) * (x.dim() - cotangent.dim())) * x for x in slopes]
        return *(None,) * (5 + ctx.count), *grads

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        value, *slopes = _evaluate(ctx.kind, ctx.order, ctx.single, ctx.saved_tensors[ctx.count :])
        total = torch.zeros_like(value)
        for slope, move in zip(slopes, tangents[5 + ctx.count :], strict=True):
            if move is not None:
                total = total + (slope * move).unsqueeze(-1).flatten(value.dim()).sum(-1)
        return total


def _evaluate(kind: type[Form], order: float | None, single: bool, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Value and slopes, made of differentiable operations on the inputs."""
    form, nu = _unpack(kind, order, inputs)
    with torch.no_grad():
        s, weights = scale_nodes(_place(kind, order, single, inputs), single)
    return form.integrate_with_slopes(s, weights, nu)


def _in_blocks(
    kind: type[Form], order: float | None, single: bool, inputs: tuple[Tensor, ...], with_slopes: bool
) -> tuple[Tensor, ...]:
    """Value, and slopes if asked for, of detached inputs."""
    if kind is PlaneForm and order is not None and order > 0 and single:
        compiled = kernels.plane_means_compiled(torch.stack(inputs), order, SINGLE)
        if compiled is not None:
            return compiled.unbind(0)
    if is_one_node(inputs[0]):
        return tuple(_means_op(inputs, kind is PlaneForm, order, single, with_slopes))
    law = _place(kind, order, single, inputs)
    # A trace has sizes that are not known yet, and is not cut into blocks.
    if torch.compiler.is_compiling():
        return _integrate(kind, order, single, inputs, law, with_slopes)
    shape = law[0].shape
    room = _BLOCK_CPU if law[0].device.type == "cpu" else _BLOCK_ACCELERATOR
    blocks = -(-shape.numel() * count_nodes(law, single) * inputs[0].element_size() // room)
    if blocks <= 1:
        return _integrate(kind, order, single, inputs, law, with_slopes)
    size = -(-shape.numel() // blocks)
    flat = [x.reshape(-1, *x.shape[len(shape) :]) for x in inputs]
    flat_law = [x.reshape(-1) for x in law]
    parts = []
    for block in (slice(start, start + size) for start in range(0, shape.numel(), size)):
        part = type(law)(*(x[block] for x in flat_law))
        parts.append(_integrate(kind, order, single, tuple(x[block] for x in flat), part, with_slopes))
    joined = (torch.cat(piece) for piece in zip(*parts, strict=True))
    return tuple(x.reshape(*shape, *x.shape[1:]) for x in joined)


@torch.library.custom_op("contmax::scale_means", mutates_args=())
def _means_op(
    inputs: Sequence[Tensor], plane: bool, order: float | None, single: bool, with_slopes: bool
) -> list[Tensor]:
    """`_in_blocks` as one opaque node."""
    results = _in_blocks(PlaneForm if plane else MatrixForm, order, single, tuple(inputs), with_slopes)
    return [x.contiguous() for x in results]


@_means_op.register_fake
def _(inputs: Sequence[Tensor], plane: bool, order: float | None, single: bool, with_slopes: bool) -> list[Tensor]:
    pairs = (PlaneForm if plane else MatrixForm)(*inputs[: 5 if plane else 2]).pairs
    return [x.new_empty(x.shape) for x in (pairs, *(inputs if with_slopes else ()))]


@_means_op.register_vmap
def _(info: Any, in_dims: Any, inputs: Sequence[Tensor], *options: Any) -> Any:
    results = _means_op(batch_first(info, in_dims[0], inputs), *options)
    return results, [0] * len(results)


def _integrate(
    kind: type[Form], order: float | None, single: bool, inputs: tuple[Tensor, ...], law: Law, with_slopes: bool
) -> tuple[Tensor, ...]:
    form, nu = _unpack(kind, order, inputs)
    s, weights = scale_nodes(law, single)
    return form.integrate_with_slopes(s, weights, nu) if with_slopes else (form.integrate(s, weights, nu),)


def _place(kind: type[Form], order: float | None, single: bool, inputs: tuple[Tensor, ...]) -> Law:
    form, nu = _unpack(kind, order, tuple(x.detach() for x in inputs))
    return place_scales(form, nu, single, form.pairs)


def _unpack(kind: type[Form], order: float | None, inputs: tuple[Tensor, ...]) -> tuple[Form, float | Tensor]:
    if order is None:
        return kind(*inputs[:-1]), inputs[-1]
    return kind(*inputs), order

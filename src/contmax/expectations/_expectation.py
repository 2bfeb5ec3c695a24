"""The expectation of a basis under a density: one public function over a table of rules, and its derivatives."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import jacrev, vmap

from contmax._autograd import apply, gradients_by_reference, needs_reference, tangent_by_reference
from contmax._eager import common_dtype, refuse_tracing
from contmax._typing import Float
from contmax.basis import Basis
from contmax.basis._basis import constants_of
from contmax.densities import BetaGaussian, MultivariateBetaGaussian
from contmax.densities._density import parameter_dtypes, widened
from contmax.kernels import means

# A function of a density and a basis, or of a prediction and a target.
Rule = Callable[[Any, Any], Tensor]


class PairRegistry:
    """A table from pairs of types, such as density and basis, to functions.

    A lookup finds the most specific match, as in torch.distributions.kl. A registered pair matches if the given types
    are its types or subclasses of them.

    Args:
        name: a noun for the functions, for error messages: "no {name} is registered for …".
        advice: the end of the error message for pairs without a match.
    """

    def __init__(self, name: str, advice: str) -> None:
        self._name, self._advice = name, advice
        self._registered: dict[tuple[type, type], Rule] = {}
        self._found: dict[tuple[type, type], Rule] = {}

    def register(self, first: type, second: type) -> Callable[[Rule], Rule]:
        """A decorator that registers a function for a pair of types."""

        def decorator(function: Rule) -> Rule:
            self._registered[first, second] = function
            self._found.clear()
            return function

        return decorator

    def find(self, first: type, second: type) -> Rule:
        """The function of the most specific match; an ambiguous lookup warns and prefers the more specific first type.

        Raises:
            NotImplementedError: if nothing matches.
        """
        pair = first, second
        if pair not in self._found:
            self._found[pair] = self._most_specific(first, second)
        return self._found[pair]

    def _most_specific(self, first: type, second: type) -> Rule:
        lines = first.__mro__, second.__mro__
        # For each matching pair, the positions of its types in the method resolution orders of the given types.
        steps = {
            pair: (lines[0].index(pair[0]), lines[1].index(pair[1]))
            for pair in self._registered
            if pair[0] in lines[0] and pair[1] in lines[1]
        }
        if not steps:
            raise NotImplementedError(
                f"no {self._name} is registered for {first.__name__} and {second.__name__}. {self._advice}"
            )
        left = min(steps, key=lambda pair: steps[pair])
        right = min(steps, key=lambda pair: steps[pair][::-1])
        if self._registered[left] is not self._registered[right]:
            warnings.warn(
                f"ambiguous {self._name} for {first.__name__} and {second.__name__}: register "
                f"({left[0].__name__}, {right[1].__name__}) to settle it.",
                RuntimeWarning,
                stacklevel=4,
            )
        return self._registered[left]


RULES = PairRegistry("expectation rule", "Register one with contmax.expectations.register_expectation.")


def expectation(density: Distribution, basis: Basis) -> Float[Tensor, "*batch K"]:
    r"""The mean of each basis function under a density, which is the core of continuous attention.

    .. math:: r_j = E_p[\psi_j(t)] = \int p(t)\,\psi_j(t)\,dt

    A Gaussian density and a Gaussian basis have a closed form. For β-Gaussians in any dimension the result is accurate
    to the dtype (relative to the largest r, 1e-6 in float32 and 1e-12 in float64). Mixtures are summed over their
    components. Any other pair in up to three dimensions is integrated by a rule that states its accuracy. The types of
    both choose the rule, the most specific one first.

    Args:
        density: p, a density of ``contmax.densities``, of :func:`contmax.regularized_prediction`, or torch's
            ``Normal``, ``MultivariateNormal``, ``Laplace``, ``Uniform`` or ``MixtureSameFamily``; batch shape (*batch).
        basis: ψ, K functions on the same domain.

    Returns:
        r, (*batch, K), differentiable in the parameters of the density, including α, and of the basis.

    Raises:
        ValueError: if density and basis live in different dimensions.
        NotImplementedError: if there is no rule for the pair.

    Example:
        >>> import torch, contmax
        >>> basis = contmax.basis.GaussianBasis.linspace(3, scale=0.2)
        >>> contmax.expectation(contmax.densities.TruncatedParabola(0.5, 0.05), basis)
        tensor([0.1158, 1.8817, 0.1158])

    Reference: Martins et al. 2020, Eq. attention_expectation.
    """
    refuse_tracing()
    dim = density.event_shape.numel() if density.event_shape else 1
    if dim != basis.event_dim:
        raise ValueError(
            f"density and basis must live in the same space; got a {type(density).__name__} in {dim} and a "
            f"{type(basis).__name__} in {basis.event_dim} dimensions."
        )
    result: Tensor = RULES.find(type(density), type(basis))(widened(density), basis)
    shape = (*density.batch_shape, basis.num_functions)
    result = result if result.shape == shape else result.expand(shape)
    # If all parameters of the density and constants of the basis have one dtype, the result gets this dtype too.
    dtypes = set(parameter_dtypes(density))
    if result.dtype not in dtypes:
        constants = [x.dtype for x in constants_of(basis) if x.is_floating_point()]
        dtypes.update(constants)
        if constants and len(dtypes) == 1:
            return result.to(dtypes.pop())
    return result


def register_expectation(density_type: type, basis_type: type) -> Callable[[Rule], Rule]:
    """Decorator that registers a rule: a function of density and basis that returns r, (*batch, K).

    The most specific match by subclass is used, as in ``torch.distributions.register_kl``.

    Args:
        density_type: a subclass of torch.distributions.Distribution.
        basis_type: a subclass of contmax.basis.Basis.

    Example:
        >>> import torch, contmax
        >>> from contmax.expectations import register_expectation
        >>> class Ramp(contmax.basis.PowerBasis):
        ...     pass
        >>> @register_expectation(torch.distributions.Normal, Ramp)
        ... def normal_ramp(density, basis):
        ...     return torch.stack([torch.ones_like(density.loc), density.loc], -1)
        >>> contmax.expectation(torch.distributions.Normal(0.3, 1.0), Ramp(2))
        tensor([1.0000, 0.3000])
    """
    for name, given, allowed in (("density_type", density_type, Distribution), ("basis_type", basis_type, Basis)):
        if not isinstance(given, type) or not issubclass(given, allowed):
            raise TypeError(f"{name} must be a subclass of {allowed.__name__}; got {given!r}. Pass the class itself.")
    return RULES.register(density_type, basis_type)


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """The dtype of a computation: the promoted dtype of the arguments, at least float32."""
    return reduce(common_dtype, [tensor.dtype for tensor in tensors], torch.float32)


def canonical_jacobian(
    density: BetaGaussian | MultivariateBetaGaussian, basis: Basis
) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."]]:
    r"""∂r/∂θ for the score :math:`f(t) = \theta_1^\top t + \operatorname{tr}(\Theta_2 tt^\top)`.

    It is the generalised covariance of the statistics of the score with ψ,

    .. math:: \frac{\partial r_j}{\partial\theta} = \mathrm{cov}_{p,2-\alpha}(\phi, \psi_j)
              = \int p^{2-\alpha}(\phi - \nabla A)\,\psi_j, \qquad \phi(t) = (t, tt^\top)

    Gradients in (μ, Σ), which autograd gives, are better conditioned; use this one for work in θ itself.

    Args:
        density: a β-Gaussian on the line or in N dimensions.
        basis: ψ, K functions on the same domain.

    Returns:
        ∂r/∂θ₁ and ∂r/∂Θ₂: each (*batch, K) on the line, else (*batch, K, N) and (*batch, K, N, N), symmetric.

    Example:
        >>> import torch, contmax
        >>> density = contmax.densities.TruncatedParabola(0.5, 0.1)
        >>> basis = contmax.basis.GaussianBasis.linspace(3, scale=0.2)
        >>> contmax.expectations.canonical_jacobian(density, basis)[0].shape
        torch.Size([3])

    Reference: Martins et al. 2020, proposition on the Jacobian (generalised covariance).
    """
    # Switch off autocast, which would round matrix products to half precision.
    with torch.autocast(density.loc.device.type, enabled=False):
        if not isinstance(density, BetaGaussian):
            return _in_space(density, basis)

        def by_theta(linear: Tensor, quadratic: Tensor, index: float | Tensor) -> Tensor:
            return expectation(BetaGaussian.from_canonical(linear, quadratic, index, validate_args=False), basis)

        linear, quadratic = (theta.reshape(-1) for theta in density.canonical)
        jacobians = _jacobians(by_theta, linear, quadratic, density.alpha)
        first, second = (x.reshape(*density.batch_shape, basis.num_functions) for x in jacobians)
        return first, second


def _in_space(density: MultivariateBetaGaussian, basis: Basis) -> tuple[Tensor, Tensor]:
    r"""e = ∂r/∂θ₁ = Σ ∂r/∂μ, and ∂r/∂Θ₂ = 2Σ(∂r/∂Σ)Σ + μeᵀ + eμᵀ: neither formula inverts Σ."""

    def by_moments(loc: Tensor, scale_matrix: Tensor, index: float | Tensor) -> Tensor:
        return expectation(MultivariateBetaGaussian(loc, scale_matrix, index, validate_args=False), basis)

    dim = basis.event_dim
    loc, sigma = density.loc.reshape(-1, dim), density.scale_matrix.reshape(-1, dim, dim)
    by_loc, by_sigma = _jacobians(by_moments, loc, sigma, density.alpha)
    first = by_loc @ sigma
    cross = loc[:, None, :, None] * first.unsqueeze(-2)
    second = 2 * sigma.unsqueeze(1) @ by_sigma @ sigma.unsqueeze(1) + cross + cross.mT
    shape = (*density.batch_shape, basis.num_functions)
    return first.reshape(*shape, dim), second.reshape(*shape, dim, dim)


def _jacobians(
    function: Callable[..., Tensor], first: Tensor, second: Tensor, alpha: float | Tensor
) -> tuple[Tensor, Tensor]:
    """The Jacobians of function(first, second, α) in `first` and in `second`, for each row of a batch."""
    index = alpha.reshape(-1) if isinstance(alpha, Tensor) else alpha
    rows = vmap(jacrev(function, argnums=(0, 1)), in_dims=(0, 0, 0 if isinstance(alpha, Tensor) else None))
    by_first, by_second = rows(first, second, index)
    return by_first, by_second


class Formula(NamedTuple):
    """Functions of (loc, scale, index, centre, width, number) that compute r = E_p[ψ] and its first derivatives.

    On the line the five tensors are μ, σ (or a half-width), α (or None), each (*batch), and μ_j, σ_j, (K,). On the
    plane, with Σ = LLᵀ and Σ_j = L_jL_jᵀ, they are μ, L, None, μ_j and L_j. `number` is k = 1/(α−1); where kernels take
    any α, it is α, and is not used if `index` holds α.

    No tensor over nodes is saved for the backward pass. Higher derivatives, forward mode and vmapped cotangents are
    computed by the reference, which consists of torch operations.
    """

    # r, (*batch, K), differentiable to every order.
    reference: Callable[..., Tensor]
    # r; None if Triton's kernels compute r and its gradients.
    values: Callable[..., Tensor] | None = None
    # ∂r/∂(μ, σ, σ_j) on the line, each (*batch, K).
    slopes: Callable[..., tuple[Tensor, ...]] | None = None


# Results of a kernel: r; and its slopes in μ, scale, σ_j and (rules for any α) α, (*batch, 3 or 4, K), or None.
Known = tuple[Tensor, Tensor | None]

FORMULAS: dict[str, Formula] = {}
"""Formulas by name; a formula of Triton's kernels has the name of its family of densities."""


def expectation_by(formula: str, number: float, *tensors: Tensor | None, known: Known | None = None) -> Tensor:
    """r, (*batch, K), by the formula of this name; `known` is the result of a kernel that has computed r already."""
    result: Tensor = apply(Expectation, formula, number, known, *tensors)
    return result


class Expectation(torch.autograd.Function):
    """E_p[ψ] by a formula of `FORMULAS`, given by its name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        name: str,
        number: float,
        known: Known | None,
        loc: Tensor,
        scale: Tensor,
        index: Tensor | None,
        centre: Tensor,
        width: Tensor,
    ) -> Tensor:
        if known is not None:
            return known[0]
        values = FORMULAS[name].values
        if values is None:
            return means.gaussian_means(loc, scale, index, centre, width, name, number)
        return values(loc, scale, index, centre, width, number)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.formula, ctx.number, known, *tensors = inputs
        # Save slopes with the inputs, so that hooks on saved tensors apply to slopes too. Under vmap torch needs
        # one list of saved tensors for backward and forward mode.
        saved = (*tensors, None if known is None else known[1])
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        loc, scale, index, centre, width, slopes = ctx.saved_tensors
        inputs = (loc, scale, index, centre, width)
        needed, formula, number = ctx.needs_input_grad[3:], FORMULAS[ctx.formula], ctx.number
        gradients: Sequence[Tensor | None]
        if needs_reference(cotangent):
            gradients = gradients_by_reference(partial(formula.reference, number=number), inputs, needed, cotangent)
        elif slopes is None and formula.slopes is None:
            gradients = means.gaussian_mean_gradients(
                cotangent, loc, scale, index, centre, width, ctx.formula, number, any(needed[3:])
            )
        else:
            known = formula.slopes(*inputs, number) if formula.slopes and slopes is None else slopes.unbind(-2)
            gradients = _gradients_of_slopes(cotangent, known, needed)
        if needed[2]:
            gradients = [*gradients[:2], gradients[2].to(index.dtype), *gradients[3:]]  # type: ignore[union-attr]
        return None, None, None, *(g if need else None for g, need in zip(gradients, needed, strict=True))

    @staticmethod
    def tangent(ctx: Any, *tangents: Any) -> Tensor:
        reference = partial(FORMULAS[ctx.formula].reference, number=ctx.number)
        return tangent_by_reference(reference, ctx.saved_tensors[:5], tangents[3:])


def _gradients_of_slopes(
    cotangent: Tensor, slopes: Sequence[Tensor], needed: Sequence[bool]
) -> Sequence[Tensor | None]:
    """Gradients of (μ, σ, α, μ_j, σ_j) on the line from ∂r/∂(μ, σ, σ_j) and, if needed, ∂r/∂α, each (*batch, K)."""
    by_loc, by_scale, by_width = slopes[:3]
    rows = (by_loc, by_scale, slopes[3] if needed[2] else None)
    columns = ((-by_loc, needed[3]), (by_width, needed[4]))
    return (
        *((cotangent * x).sum(-1) if need and x is not None else None for x, need in zip(rows, needed, strict=False)),
        *((cotangent * x).sum_to_size(x.shape[-1:]) if need else None for x, need in columns),
    )

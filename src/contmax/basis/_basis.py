"""The base class of bases (modules that evaluate K functions on an N-dimensional domain) and shared checks."""

import copy
import inspect
import math
import warnings
import weakref
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from contmax._eager import is_real, wide_dtype
from contmax._mask import require_mask
from contmax._typing import Float

# Standard deviation of Gaussians divided by their spacing. Ratios were compared on random signals, smooth and rough, at
# 50 to 1000 positions with penalties of 0.01 and 0.001, on the line and in the plane. Below 0.6 Gaussians leave gaps:
# at 0.3 a fifth of a smooth signal is lost. From 0.7 to 1.0 they follow a signal as well as K functions can. A fit has
# the condition number 3e2 at 0.8, 1e4 at 1.0 and 6e5 at 1.2; from 1.2 on the penalty smooths the signal.
_WIDTH_OF_SPACING = 0.8
# Rounding errors of positions up to this share of the spacing of functions are harmless: noise changes a fit more.
_ROUNDED_SPACING = 0.01

# All existing bases by id: operators in graphs of torch.compile take the id, because they cannot take a module.
living: "weakref.WeakValueDictionary[int, Basis]" = weakref.WeakValueDictionary()


class _CheckedWhenMade(ABCMeta):
    """Metaclass that, after the constructor, calls `_read_constants` and checks that a basis has K values per point."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        basis = super().__call__(*args, **kwargs)
        basis._read_constants()
        basis._check_functions()
        return basis

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of `__init__`, which `inspect` ignores because the metaclass has a `__call__`."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Basis(torch.nn.Module, metaclass=_CheckedWhenMade):
    r"""K basis functions ψ: ℝᴺ → ℝᴷ. A signal is V(t) = Bψ(t), a context c = B·E_p[ψ].

    A basis with N = 1 takes points t of any shape (…) and returns (…, K); one with N > 1 takes (…, N).
    Its constants are buffers, or parameters if it was made with ``learnable=True``.

    A subclass sets ``num_functions`` (and ``event_dim`` if N > 1) in its ``__init__`` and defines ``forward``.

    Raises:
        TypeError: if ``num_functions`` or ``event_dim`` is not a positive int.
        ValueError: if ``forward`` does not return ``num_functions`` values for each point.

    Example:
        >>> import torch, contmax
        >>> class Exponentials(contmax.basis.Basis):
        ...     num_functions = 3
        ...     def forward(self, t):
        ...         return torch.exp(-t.unsqueeze(-1) * torch.arange(3))
        >>> contmax.fit_signal(torch.randn(50, 8), Exponentials()).coefficients.shape
        torch.Size([3, 8])
    """

    num_functions: int
    """K, the number of basis functions."""
    event_dim: int = 1
    """N, the dimension of the domain."""

    def __init__(self) -> None:
        super().__init__()
        # The initial constants, on the CPU; None for constants given on the meta device.
        self._start: dict[str, Tensor | None] = {}
        self._live()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._live()

    def _live(self) -> None:
        # torch.compile guards on this attribute, so that a graph is used only with the basis for which it was traced.
        self._id = id(self)
        living[self._id] = self

    @abstractmethod
    def forward(self, t: Float[Tensor, "..."]) -> Float[Tensor, "... K"]:
        """ψ(t): (…) → (…, K) for N = 1, (…, N) → (…, K) for N > 1."""

    @property
    def breakpoints(self) -> Float[Tensor, " M"] | None:
        """Points where some ψ_j (N = 1) is not smooth, where a quadrature rule should split; None if all are smooth."""
        return None

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Lowest and highest corner of the box that the functions cover, () for N = 1, (N,) for N > 1.

        Attention that must choose points itself chooses them in this box. The default is [0, 1]ᴺ.
        """
        shape = () if self.event_dim == 1 else (self.event_dim,)
        like = self._like()
        return like.new_zeros(shape), like.new_ones(shape)

    @property
    def volume(self) -> Tensor | float:
        """Volume of the box that the functions cover, if their values are per unit of volume, as those of densities.

        The ridge penalty of a fit is divided by its square, because such functions have other heights in another unit
        of t. It is 1 for functions whose values have no unit, such as splines and waves, and by default.
        """
        return 1.0

    @property
    def needs_gradient(self) -> bool:
        """Whether any constant of the basis requires a gradient."""
        return any(constant.requires_grad for constant in constants_of(self))

    def reset_parameters(self) -> None:
        """Restore the constants the basis was made with, after `to_empty` has replaced its tensors.

        Raises:
            RuntimeError: if they are not known, because they were given as tensors on the meta device.
        """
        for name, start in self._start.items():
            if start is None:
                raise RuntimeError(
                    f"{name} was given as a tensor on the meta device, so its values are not known. Load a state dict, "
                    "or make the basis from Python numbers, as GaussianBasis.linspace does."
                )
            with torch.no_grad():
                getattr(self, name).copy_(start)
        self._read_constants()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._read_constants()

    def _read_constants(self) -> None:
        """Compute attributes that depend on the constants; called after these are created, reset or loaded."""

    def with_constants(self, constants: Sequence[Tensor]) -> Self:
        """A copy with these constants, in the order of `constants_of`, all registered as buffers."""
        given = {id(own): constant for own, constant in zip(constants_of(self), constants, strict=True)}
        twin: Self = _changed(self, lambda own: given[id(own)])
        return twin

    def moved(self, device: torch.device, dtype: torch.dtype) -> Self:
        """A copy on this device and in this dtype; gradients of the copy reach the constants of the original."""
        twin: Self = _changed(self, lambda t: t.to(device, dtype if t.is_floating_point() else None))
        return twin

    def _register(self, name: str, value: Tensor, learnable: bool, device: torch.device) -> None:
        """Register a constant, as a parameter if `learnable`, else as a buffer, and store its values for a reset."""
        self._start[name] = None if value.is_meta else value.detach().to("cpu", copy=True)
        placed = value.to(device)
        if learnable:
            self.register_parameter(name, torch.nn.Parameter(placed.detach().clone()))
        else:
            self.register_buffer(name, placed)

    def _like(self) -> Tensor:
        """A tensor with the device and dtype of the constants."""
        return next((c.detach() for c in constants_of(self) if c.is_floating_point()), torch.empty(0))

    def extra_repr(self) -> str:
        """The text of `repr` between the parentheses."""
        return f"num_functions={self.num_functions}"

    def _check_functions(self) -> None:
        for name in ("num_functions", "event_dim"):
            count = getattr(self, name, None)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise TypeError(
                    f"{type(self).__name__}.{name} must be a positive int; got {count!r}. Set it in __init__."
                )
        points = self._like().new_zeros((3,) if self.event_dim == 1 else (3, self.event_dim))
        with torch.no_grad():
            shape = tuple(self.forward(points).shape)
        if shape != (3, self.num_functions):
            raise ValueError(
                f"{type(self).__name__} has num_functions = {self.num_functions} but returns shape {shape} for points "
                f"of shape {tuple(points.shape)}. It must return one value per point and function, "
                f"(3, {self.num_functions}): correct num_functions or forward."
            )


def constants_of(basis: Basis) -> tuple[Tensor, ...]:
    """The buffers, then the parameters, including those of submodules."""
    if basis._modules:
        return (*basis.buffers(), *basis.parameters())
    # Without submodules, read the dicts: `buffers` and `parameters` return these tensors too, but take longer than an
    # expectation.
    own = (*basis._buffers.values(), *basis._parameters.values())
    return tuple([constant for constant in own if constant is not None])


def _changed(module: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a module with `change` applied to each buffer and parameter; all results are buffers."""
    twin = copy.copy(module)
    tensors = {**module._buffers, **module._parameters}
    twin._parameters = {}
    twin._buffers = {name: None if t is None else change(t) for name, t in tensors.items()}
    twin._modules = {name: _changed(child, change) for name, child in module._modules.items()}
    return twin


class RadialBasis(Basis):
    """Base class of Gaussian bases: functions around centres `loc` that are densities, with values per unit of volume.

    A subclass defines `_deviations`, the standard deviations along each axis, (K,) or (K, N).
    """

    loc: Tensor
    fixed_volume: Tensor
    learnable: bool

    def _register_radial(
        self, centres: Tensor, deviations: Tensor, widths: dict[str, Tensor], learnable: bool, device: torch.device
    ) -> None:
        """Register centres and `widths` (tensors by name), as parameters if `learnable`, else as buffers.

        A learnable basis also gets a buffer `fixed_volume`, its volume at this time.
        """
        self.num_functions, self.learnable = len(centres), learnable
        for name, value in {"loc": centres, **widths}.items():
            self._register(name, value, learnable, device)
        if learnable:
            # The ridge penalty of a fit depends on the volume, so the volume must not change while centres are learned.
            self._register("fixed_volume", volume_of(centres, deviations), False, device)

    @property
    def _deviations(self) -> Tensor:
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The outermost centres along each axis, () for N = 1, (N,) for N > 1."""
        low, high = self.loc.detach().amin(0), self.loc.detach().amax(0)
        return (low.reshape(()), high.reshape(())) if self.event_dim == 1 else (low, high)

    @property
    def volume(self) -> Tensor:
        """The volume of the box of the centres, each side of which is at least the mean standard deviation over 0.8.

        For a learned basis it is the volume at the time the basis was made, which is in the state dict.
        """
        return self.fixed_volume if self.learnable else volume_of(self.loc, self._deviations)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        state_dict, prefix, *_ = arguments
        if self.learnable:
            # State dicts of earlier versions have no volume: add the volume with which this basis was made.
            state_dict.setdefault(prefix + "fixed_volume", self.fixed_volume)
        super()._load_from_state_dict(*arguments)


def volume_of(centres: Tensor, deviations: Tensor) -> Tensor:
    r"""V = Π_i max(b_i − a_i, s̄_i/0.8) in float64, with s̄ the mean of s: the volume of the box of the centres.

    Args:
        centres: (K,) or (K, N), with least and greatest values a_i and b_i along axis i.
        deviations: standard deviations s along each axis, (K,) or (K, N).
    """
    known = centres.detach().double()
    single = deviations.detach().double().mean(0) / _WIDTH_OF_SPACING
    return torch.maximum(known.amax(0) - known.amin(0), single).prod()


def floating(value: object, name: str) -> Tensor:
    """`value` as a finite floating-point tensor; floating-point tensors keep their dtype, others get the default dtype.

    A tensor stays on its device; numbers become a CPU tensor, so that checks can read its values.
    """
    default = torch.get_default_dtype()
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=default, device="cpu")
    if not tensor.is_floating_point():
        tensor = tensor.to(default)
    if can_be_read(tensor) and not bool(tensor.detach().isfinite().all()):
        raise ValueError(f"{name} must be finite; got NaN or infinity in a tensor of shape {tuple(tensor.shape)}.")
    return tensor


def device_for(value: object) -> torch.device:
    """The device for a constant: the device of a tensor, or the default device (which may be meta) for numbers."""
    return value.device if isinstance(value, Tensor) else torch.get_default_device()


def can_be_read(tensor: Tensor) -> bool:
    """Whether a tensor has values, that is, is neither on the meta device nor in a trace."""
    return is_real(tensor) and not tensor.is_meta


def require_positive(value: Tensor, name: str, advice: str) -> Tensor:
    """`value` unchanged; raises a ValueError with its minimum if an element is not positive."""
    if value.numel() and can_be_read(value) and bool((value.detach() <= 0).any()):
        lowest = value.detach().min().item()
        raise ValueError(
            f"{name} must be positive; got min {lowest:g} in a tensor of shape {tuple(value.shape)}. {advice}"
        )
    return value


def listed(scale: float | Sequence[float]) -> list[float]:
    """One standard deviation, or several, as a list."""
    return [scale] if isinstance(scale, (int, float)) else list(scale)


def evenly(num: int, widths: int, low: float, high: float, dtype: torch.dtype | None = None) -> list[float]:
    """`num` centres: for each of `widths` widths, num/widths centres evenly spaced in [low, high].

    A single centre lies in the middle. Warns if `dtype`, or the default dtype, is too coarse for the centres.
    """
    if num < 1 or num % widths:
        raise ValueError(
            f"num must be a positive multiple of the number of widths; got {num} functions for {widths} widths. "
            f"Pass {max(1, num // widths) * widths} or {(num // widths + 1) * widths}."
        )
    if not low < high:
        raise ValueError(f"low must be below high; got [{low}, {high}].")
    each = num // widths
    coarse = rounding_warning(low, high, each, dtype or torch.get_default_dtype())
    if coarse is not None:
        warnings.warn(coarse, stacklevel=3)
    line = torch.linspace(low, high, each, dtype=torch.float64, device="cpu").tolist()
    return (line if each > 1 else [(low + high) / 2]) * widths


def covering_width(num: int, low: float, high: float) -> float:
    """The standard deviation with which `num` equally spaced functions cover an interval: 0.8 of their spacing.

    The spacing of a single function is the length of the interval.
    """
    return _WIDTH_OF_SPACING * (high - low) / max(num - 1, 1)


def least_exponent(dtype: torch.dtype) -> float:
    """Lower bound to which exponents are clamped, because denormal values of exp would take a CPU ten times as long.

    A fit multiplies pairs of values of exp. In float64 the bound is high enough that products are not denormal either.
    """
    return -300.0 if dtype == torch.float64 else 0.99 * math.log(torch.finfo(wide_dtype(dtype)).tiny)


def rounding_warning(low: float, high: float, num: int, dtype: torch.dtype) -> str | None:
    """A warning with advice if `dtype` is too coarse for `num` functions over positions in [low, high]; else None."""
    step = torch.finfo(dtype).eps * max(abs(low), abs(high))
    if step <= _ROUNDED_SPACING * (high - low) / max(num - 1, 1):
        return None
    return (
        f"Positions between {low:.10g} and {high:.10g} are rounded to multiples of "
        f"{_spacing(max(abs(low), abs(high)), dtype):g} in {_name(dtype)}, which is coarse beside the basis functions: "
        "differences are lost. Pass float64 positions, such as Unix times as torch.tensor(times, dtype=torch.float64), "
        "and make the basis from them with spanning; or subtract the first."
    )


def extent(positions: Tensor, mask: Tensor | None, dim: int) -> list[tuple[float, float]]:
    """Least and greatest coordinate of points (…), or (…, N) for N = `dim` > 1, along each axis."""
    require_mask(mask, positions.shape if dim == 1 else positions.shape[:-1], "positions")
    if not can_be_read(positions):
        raise ValueError(
            "spanning reads the values of the positions, which are not known on the meta device or inside a trace. "
            "Make the basis beforehand, or use linspace or grid."
        )
    points = positions.detach().to("cpu", torch.float64)
    points = points.unsqueeze(-1) if dim == 1 else points
    if points.shape[-1:] != (dim,):
        raise ValueError(f"positions must have shape (…, {dim}); got {tuple(positions.shape)}.")
    points = points.reshape(-1, dim) if mask is None else points[mask.to("cpu").expand(points.shape[:-1])]
    if len(points) == 0 or not bool(points.isfinite().all()):
        raise ValueError(
            f"at least two positions are needed, all finite; got {len(points)}, of which "
            f"{int((~points.isfinite()).any(-1).sum())} are NaN or infinite. Pass a mask that is False there."
        )
    low, high = points.amin(0).tolist(), points.amax(0).tolist()
    for a, b in zip(low, high, strict=True):
        if not a < b:
            step = _spacing(a, positions.dtype) if a else 0.0
            advice = f", and {_name(positions.dtype)} rounds such numbers to multiples of {step:g}: pass float64, or "
            raise ValueError(
                f"positions must span an interval along each axis; along one axis all of them are {a:.10g}"
                f"{f'{advice}subtract the first' if step >= 1e-3 else ''}."
            )
    return list(zip(low, high, strict=True))


def _spacing(number: float, dtype: torch.dtype) -> float:
    """The distance between neighbouring floating-point numbers at `number`, which is not 0."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(abs(number)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

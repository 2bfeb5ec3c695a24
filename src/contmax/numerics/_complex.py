"""Complex numbers as pairs of real tensors.

On a CPU torch's complex exp and log are a hundred times slower than the real functions they consist of, and inductor
does not compile complex tensors at all.
"""

import math
from typing import Union

import torch
from torch import Tensor


class Complex:
    """x + iy, held as two real tensors that broadcast.

    Operators take complex operands and numbers; real tensors go through `shifted` and `scaled`, since torch.compile
    does not see through an operator between a tensor and an object.

    Args:
        re: real part x.
        im: imaginary part y.

    Example:
        >>> z = Complex(torch.tensor(0.0), torch.tensor(2.0))
        >>> (z * z).re, z.log().im
        (tensor(-4.), tensor(1.5708))
    """

    def __init__(self, re: Tensor, im: Tensor) -> None:
        self.re, self.im = re, im
        self._squared: Tensor | None = None

    def __add__(self, other: Union["Complex", float]) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.re + other.re, self.im + other.im)
        return self.shifted(other)

    def __sub__(self, other: Union["Complex", float]) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.re - other.re, self.im - other.im)
        return self.shifted(-other)

    def __mul__(self, other: Union["Complex", float]) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.times_real_part(other), torch.addcmul(self.re * other.im, self.im, other.re))
        return self.scaled(other)

    def __neg__(self) -> "Complex":
        return Complex(-self.re, -self.im)

    def shifted(self, by: Tensor | float) -> "Complex":
        """z + by, for a real addend."""
        return Complex(self.re + by, self.im)

    def scaled(self, by: Tensor | float) -> "Complex":
        """z·by, for a real factor."""
        return Complex(self.re * by, self.im * by)

    def plus(self, other: "Complex", times: float | Tensor) -> "Complex":
        """z + times·other for a real factor, in one pass over each part."""
        return Complex(_add_multiple(self.re, other.re, times), _add_multiple(self.im, other.im, times))

    def plus_log(self, other: "Complex", times: float | Tensor) -> "Complex":
        """z + times·ln(other) for a real factor; see :meth:`log`."""
        squared = other.squared_modulus()
        half_angle = torch.atan(other.im / (squared.sqrt() + other.re))
        return Complex(
            _add_multiple(self.re, squared.log(), 0.5 * times), _add_multiple(self.im, half_angle, 2 * times)
        )

    def times_real_part(self, other: "Complex") -> Tensor:
        """The real part of the product."""
        return torch.addcmul(self.re * other.re, self.im, other.im, value=-1)

    def squared_modulus(self) -> Tensor:
        """|z|²."""
        if self._squared is None:
            self._squared = torch.addcmul(self.re * self.re, self.im, self.im)
        return self._squared

    def reciprocal(self) -> "Complex":
        """1/z."""
        inverse = self.squared_modulus().reciprocal()
        return Complex(self.re * inverse, -self.im * inverse)

    def log(self) -> "Complex":
        """ln z, accurate away from the negative real axis: the argument is 2 arctan(y/(|z| + x))."""
        squared = self.squared_modulus()
        return Complex(0.5 * squared.log(), 2 * torch.atan(self.im / (squared.sqrt() + self.re)))

    def exp(self) -> "Complex":
        """exp z, zero where it is within a few digits of underflow: subnormal numbers slow a CPU down tenfold."""
        lowest = math.log(torch.finfo(self.re.dtype).tiny) + 17
        size = torch.threshold(self.re, lowest, -math.inf).exp()
        return Complex(size * self.im.cos(), size * self.im.sin())


def _add_multiple(x: Tensor, y: Tensor, times: float | Tensor) -> Tensor:
    return torch.addcmul(x, y, times) if isinstance(times, Tensor) else torch.add(x, y, alpha=times)

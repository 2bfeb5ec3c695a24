"""Complex numbers as pairs of real tensors.

On a CPU torch's complex exp and log are a hundred times slower than the real functions they consist of, and inductor
does not compile complex tensors at all.
"""

from typing import Union

import torch
from torch import Tensor

Operand = Union["Complex", Tensor, float]


class Complex:
    """x + iy, held as two real tensors that broadcast.

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

    def __add__(self, other: Operand) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.re + other.re, self.im + other.im)
        return Complex(self.re + other, self.im)

    def __sub__(self, other: Operand) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.re - other.re, self.im - other.im)
        return Complex(self.re - other, self.im)

    def __rsub__(self, other: Tensor | float) -> "Complex":
        return Complex(other - self.re, -self.im)

    def __mul__(self, other: Operand) -> "Complex":
        if isinstance(other, Complex):
            return Complex(self.times_real_part(other), torch.addcmul(self.re * other.im, self.im, other.re))
        return Complex(self.re * other, self.im * other)

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
        """exp z."""
        size = self.re.exp()
        return Complex(size * self.im.cos(), size * self.im.sin())

    def detach(self) -> "Complex":
        """The same number, out of the graph."""
        return Complex(self.re.detach(), self.im.detach())

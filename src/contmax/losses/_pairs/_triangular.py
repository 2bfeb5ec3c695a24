"""The loss between two triangular densities."""

import torch
from torch import Tensor

from contmax._typing import Float
from contmax.densities import Triangular
from contmax.losses._fenchel_young import register_fenchel_young


@register_fenchel_young(Triangular, Triangular)
def triangular_loss(prediction: Triangular, target: Triangular) -> Float[Tensor, "*batch"]:
    r"""The loss of a triangular prediction against a triangular target, in float64.

    .. math:: L = \frac{(a-a_p)^2}{3a^2a_p} + \frac1{a^2} \begin{cases}
              \frac{m^2}{a_p}\big(1-\frac{m}{3a_p}\big) & m \le a_p \\ m - \frac{a_p}3 & m > a_p \end{cases}, \qquad
              m = |\mu-\mu_p|,\ a = \sqrt b,\ a_p = \sqrt{b_p}

    which is the maximum of the paper's two expressions, written as a sum of terms that are not negative.

    References:
        Martins et al. 2020, App. on Fenchel–Young losses between triangular densities.
    """
    b, b_p = prediction.scale.double(), target.scale.double()
    width, width_p = b.sqrt(), b_p.sqrt()
    offset = prediction.loc.double() - target.loc.double()
    distance = offset.abs()
    inner = torch.minimum(distance, width_p)
    # The square of the offset and not of its modulus, which has no second derivative at zero.
    misplaced = torch.minimum(offset.square(), b_p) / width_p * (1 - inner / (3 * width_p)) + (distance - inner)
    misshapen = ((b - b_p) / (width + width_p)).square() / (3 * width_p)
    return (misplaced + misshapen) / b

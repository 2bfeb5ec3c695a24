"""What is measured of where an attention looks."""

import torch
from torch import Tensor

from contmax.densities import BetaGaussian
from contmax_lab.tasks.translation._model import Guesses


def shares(guesses: Guesses) -> Tensor:
    """How much of the attention falls to each piece of the source, (B, T, L).

    Weights of a discrete attention; of a density what falls to the cell of a piece, of all that falls inside the
    sentence; of both, the mean.
    """
    weights, density = guesses.look.weights, guesses.density
    if density is None:
        return weights
    mass = _cell_mass(density, guesses.mask)
    return (weights + mass) / 2 if guesses.combined else mass


def inside(guesses: Guesses) -> Tensor:
    """Which pieces of the source have a positive weight, or lie where the density is positive, (B, T, L)."""
    mask, density = guesses.mask.unsqueeze(1), guesses.density
    found = (guesses.look.weights > 0) if density is None or guesses.combined else torch.zeros_like(mask)
    if density is not None:
        found = found | ((_middles(guesses.mask) - density.loc.unsqueeze(-1)).abs() < density.half_width.unsqueeze(-1))
    return found & mask


def attention_measures(guesses: Guesses, said: Tensor) -> dict[str, Tensor]:
    """Of each sentence, as means over the pieces of its translation, (B,).

    ``attended``: the share of the source pieces inside the support. ``entropy``: of the shares of the pieces, in nats.
    ``monotone``: of the steps from one piece to the next, the share in which the middle of the attention does not move
    back. ``diagonal``: how far that middle is from the same place of the translation, as a share of the sentence.

    Args:
        guesses: of a network.
        said: which places of the translation hold a piece, (B, T).
    """
    count = said.sum(-1).clamp(min=1)
    found = shares(guesses)
    source = guesses.mask.sum(-1, keepdim=True).clamp(min=1)
    attended = inside(guesses).sum(-1) / source
    entropy = -torch.special.xlogy(found, found).sum(-1)
    middle = (found * _middles(guesses.mask)).sum(-1)
    place = (said.cumsum(-1) - 0.5) / count.unsqueeze(-1)
    steps = said[:, 1:] & said[:, :-1]
    forward = (middle[:, 1:] >= middle[:, :-1]) & steps
    return {
        "attended": (attended * said).sum(-1) / count,
        "entropy": (entropy * said).sum(-1) / count,
        # A translation of one piece is in order.
        "monotone": torch.where(steps.any(-1), forward.sum(-1) / steps.sum(-1).clamp(min=1), 1.0),
        "diagonal": ((middle - place).abs() * said).sum(-1) / count,
    }


def _middles(mask: Tensor) -> Tensor:
    """Middles of the pieces in the unit interval, (B, 1, L)."""
    return ((mask.cumsum(-1) - 0.5) / mask.sum(-1, keepdim=True).clamp(min=1)).unsqueeze(1)


def _cell_mass(density: BetaGaussian, mask: Tensor) -> Tensor:
    """What of a density falls to each piece, (B, T, L), as a share of what falls to all."""
    count = mask.sum(-1, keepdim=True).clamp(min=1)
    ends = torch.cat([torch.zeros_like(count), mask.cumsum(-1)], -1) / count
    below = density.cdf(ends.mT.unsqueeze(-1)).permute(1, 2, 0)
    mass = below.diff(dim=-1) * mask.unsqueeze(1)
    return mass / mass.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)

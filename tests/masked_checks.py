"""What tests of masked places share: numbers that must not matter, and the comparison with zeros in their place."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# The last overflows in the first product.
FILLERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "3e38": 3e38}
ALL = "all fillers"


def filled(x: Tensor, may: Tensor, filler: float | str) -> Tensor:
    """x with a filler, or with all of them in turn, where it may not be attended; `may` broadcasts to x."""
    numbers = list(FILLERS.values()) if isinstance(filler, str) else [filler]
    largest = torch.finfo(x.dtype).max
    numbers = [min(n, largest) if n == FILLERS["3e38"] else n for n in numbers]
    turns = torch.tensor(numbers, dtype=x.dtype)[torch.arange(x.numel()) % len(numbers)]
    return torch.where(may, x.detach(), turns.view(x.shape))


def assert_never_matters(
    call: Callable[..., Sequence[Tensor]],
    given: Sequence[Tensor],
    places: Sequence[Tensor | None],
    filler: float | str,
    module: torch.nn.Module | None = None,
    rounding: float = 0.0,
) -> None:
    """Results and gradients with a filler are those with zeros, and gradients of masked places are exactly 0.

    Args:
        call: from the tensors to results, each of which is a function of all of them.
        given: the tensors; all get gradients.
        places: for each of them which places may be attended, broadcastable to it; None if all.
        filler: for the masked places.
        module: its parameters get gradients too.
        rounding: what results may be off by, where masked rows share the steps of a root search with others.
    """
    wanted = _results(call, given, places, 0.0, module)
    found = _results(call, given, places, filler, module)
    for name, want in wanted.items():
        assert want.isfinite().all(), f"{name} is not finite even with zeros"
        # The same numbers go the same way.
        assert torch.allclose(found[name], want, rtol=0, atol=rounding), (name, found[name], want)
    for i, may in enumerate(places):
        if may is not None:
            assert (found[f"gradient {i}"].masked_fill(may.expand(given[i].shape), 0) == 0).all()


def _results(
    call: Callable[..., Sequence[Tensor]],
    given: Sequence[Tensor],
    places: Sequence[Tensor | None],
    filler: float | str,
    module: torch.nn.Module | None,
) -> dict[str, Tensor]:
    torch.default_generator.manual_seed(0)  # modules may draw; `torch.manual_seed` takes most of a millisecond
    inputs = [
        (x.detach().clone() if may is None else filled(x, may, filler)).requires_grad_()
        for x, may in zip(given, places, strict=True)
    ]
    outputs = call(*inputs)
    parameters = {} if module is None else dict(module.named_parameters())
    total = sum(
        (output.double().sin() * (1 + torch.arange(output.numel())).sqrt().view(output.shape)).sum()
        for output in outputs
    )
    gradients = torch.autograd.grad(total, [*inputs, *parameters.values()], allow_unused=True, materialize_grads=True)
    named = {f"output {i}": x.detach() for i, x in enumerate(outputs)}
    names = [f"gradient {i}" for i in range(len(inputs))] + list(parameters)
    return named | dict(zip(names, gradients, strict=True))

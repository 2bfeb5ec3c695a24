"""Every module of contmax.nn under the transforms of torch.func: a list for CPUs, GPUs and Triton's interpreter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis

D = 4


class Case(NamedTuple):
    """A module, how it is called, and its arguments."""

    make: Callable[[], torch.nn.Module]
    call: Callable[..., Tensor]
    arguments: Callable[[], list[Tensor]]


def line() -> GaussianBasis:
    return GaussianBasis.linspace(6, scale=(0.2, 0.5))


def plane() -> MultivariateGaussianBasis:
    return MultivariateGaussianBasis.grid(2, scale=0.3)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def a_sequence() -> list[Tensor]:
    """Values (B, L, D), queries (B, Q, D) and a mask (B, L)."""
    mask = torch.tensor([[True, True, False, True, True, False], [False, True, True, True, False, True]])
    return [drawn(2, 6, D), drawn(2, 3, D, seed=1), mask]


def asked(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return attend(values, query=query, mask=mask, need_density=False)[0]


def alone(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return attend(values, mask=mask, need_density=False)[0]


def by_position(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return attend(values, query, mask=mask)[0]


def pooled(pool: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return pool(values, mask=mask)[0]


def by_heads(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return attend(query, values, mask=mask, need_density=False)[0]


def given(attend: Any, values: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
    pair = torch.sigmoid(query[:, 0, 0]), torch.exp(0.3 * query[:, 0, 1] - 1)
    return attend(values, pair, mask=mask, need_density=False)[0]


def given_without_mask(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return given(attend, values, query, None)


def given_on_plane(attend: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    matrix = 0.1 * torch.diag_embed(torch.exp(0.3 * query[:, 0, 2:4]))
    return attend(values, (torch.sigmoid(query[:, 0, :2]), matrix), need_density=False)[0]


def half_width(head: Any, values: Tensor, query: Tensor, mask: Tensor) -> Tensor:
    return head(values, alpha=2.0, mask=mask).half_width


def called(module: Any, *arguments: Tensor) -> Tensor:
    return module(*arguments)


def masked(module: Any, scores: Tensor, mask: Tensor) -> Tensor:
    return module(scores, mask=mask)


def continuous(**options: Any) -> Callable[[], torch.nn.Module]:
    return lambda: nn.ContinuousAttention(line(), **options).eval()


CASES = {
    "Sparsemax": Case(nn.Sparsemax, called, lambda: [drawn(3, 7)]),
    "Entmax": Case(lambda: nn.Entmax(1.5), called, lambda: [drawn(3, 7)]),
    "Entmax, masked": Case(lambda: nn.Entmax(1.3), masked, lambda: [drawn(3, 7), drawn(3, 7, seed=1) > -0.5]),
    "Entmax, learned α": Case(lambda: nn.Entmax(1.4, learnable=True, num_heads=2), called, lambda: [drawn(1, 2, 2, 7)]),
    "FenchelYoungLoss": Case(
        lambda: nn.FenchelYoungLoss(1.5, label_smoothing=0.1), called, lambda: [drawn(3, 7), torch.tensor([0, 6, 2])]
    ),
    "FenchelYoungLoss, soft targets": Case(
        lambda: nn.FenchelYoungLoss(1.5), called, lambda: [drawn(3, 7), drawn(3, 7, seed=1).softmax(-1)]
    ),
    "EntmaxAttention": Case(
        lambda: nn.EntmaxAttention(D, 1), called, lambda: [drawn(1, 32, D), drawn(1, 3, D, seed=1)]
    ),
    "EntmaxAttention, α = 1": Case(
        lambda: nn.EntmaxAttention(D, 2, alpha=1.0), called, lambda: [drawn(1, 5, D), drawn(1, 7, D, seed=1)]
    ),
    "EntmaxAttention, few queries": Case(
        lambda: nn.EntmaxAttention(D, 2), called, lambda: [drawn(1, 5, D), drawn(1, 7, D, seed=1)]
    ),
    "DiscreteAttention": Case(lambda: nn.DiscreteAttention(D, D, alpha=1.5), by_position, a_sequence),
    "BagPooling": Case(lambda: nn.BagPooling(D), pooled, a_sequence),
    "BagPooling, learned α": Case(lambda: nn.BagPooling(D, learnable=True), pooled, a_sequence),
    "given": Case(continuous(), given, a_sequence),
    "given, no mask": Case(continuous(alpha=1.5), given_without_mask, a_sequence),
    "given, learned α": Case(continuous(alpha=1.5, learnable=True), given, a_sequence),
    "given on a plane": Case(lambda: nn.ContinuousAttention(plane(), grid=(2, 3)).eval(), given_on_plane, a_sequence),
    "GateHead": Case(lambda: nn.GateHead(D).eval(), half_width, a_sequence),
    "gates": Case(continuous(embed_dim=D), alone, a_sequence),
    "gates, asked": Case(continuous(embed_dim=D, query_dim=D, alpha=1.5), asked, a_sequence),
    "PooledHead": Case(lambda: nn.ContinuousAttention(line(), head=nn.PooledHead(D, query_dim=D)), asked, a_sequence),
    "MomentHead": Case(
        lambda: nn.ContinuousAttention(line(), head=nn.MomentHead(nn.DiscreteAttention(D, D))), asked, a_sequence
    ),
    "WindowHead": Case(
        lambda: nn.ContinuousAttention(line(), head=nn.WindowHead(nn.DiscreteAttention(D, D))), asked, a_sequence
    ),
    "CombinedAttention": Case(
        lambda: nn.CombinedAttention(nn.DiscreteAttention(D, D, alpha=1.5), line()), asked, a_sequence
    ),
    "CombinedAttention, gates": Case(
        lambda: nn.CombinedAttention(None, line(), head=nn.GateHead(D)).eval(), alone, a_sequence
    ),
    "MultiheadContinuousAttention": Case(lambda: nn.MultiheadContinuousAttention(D, 2, line()), by_heads, a_sequence),
}


def modules_without_a_case() -> set[str]:
    """Names of modules in contmax.nn that no case calls."""
    public = {name: x for name, x in vars(nn).items() if isinstance(x, type) and issubclass(x, torch.nn.Module)}
    tried = {type(part) for case in CASES.values() for part in case.make().modules()}
    return {name for name, kind in public.items() if kind not in tried}


class Tried:
    """A module of the list on a device, its arguments, and what a plain call gives."""

    def __init__(self, name: str, device: str) -> None:
        torch.manual_seed(0)
        make, self._call, arguments = CASES[name]
        self.module = make().to(device)
        self.arguments = [x.to(device) for x in arguments()]
        self.live = [*self.module.parameters(), *(x for x in self.arguments if x.is_floating_point())]
        for x in self.live:
            x.requires_grad_()
        self.result = self(*self.arguments)

    def __call__(self, *arguments: Tensor) -> Tensor:
        return self._call(self.module, *arguments)

    def gradients(self, result: Tensor, cotangent: Tensor) -> list[Tensor]:
        """Of parameters and arguments; zeros for what does not matter."""
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return list(torch.autograd.grad(result, self.live, cotangent, **options))


def assert_vmap_of_closed_over(tried: Tried) -> None:
    """A vmapped function that calls the module with tensors that vmap does not see."""
    factors = torch.tensor([1.0, -2.0], device=tried.result.device)
    together = torch.vmap(lambda factor: factor * tried(*tried.arguments))(factors)
    assert_same(together, torch.stack([tried.result, -2 * tried.result]))
    cotangent = tried.result.detach().cos()
    for got, expected in zip(
        tried.gradients(together[0], cotangent), tried.gradients(tried.result, cotangent), strict=True
    ):
        assert_same(got, expected)


def assert_vmap_of_arguments(tried: Tried) -> None:
    """Every argument alone, then all of them."""
    count = len(tried.arguments)
    twice = [torch.stack([x, x.flip(0)]).detach() for x in tried.arguments]
    first = tried(*(x[0] for x in twice))
    for alone in range(count + 1):
        places = tuple(0 if alone in (place, count) else None for place in range(count))
        given = [x if place == 0 else x[0] for x, place in zip(twice, places, strict=True)]
        second = tried(*(x[1] if place == 0 else x for x, place in zip(given, places, strict=True)))
        assert_same(torch.vmap(tried, places)(*given), torch.stack([first, second]))


def assert_vmap_of_cotangents(tried: Tried) -> None:
    """Gradients for several cotangents at a time, by torch.vmap and by the vmap of torch.autograd.grad."""
    cotangents = drawn(2, *tried.result.shape, seed=3).to(tried.result.device)
    expected = [torch.stack(x) for x in zip(*(tried.gradients(tried.result, c) for c in cotangents), strict=True)]
    for got, true in zip(torch.vmap(lambda c: tried.gradients(tried.result, c))(cotangents), expected, strict=True):
        assert_same(got, true)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
    for got, true in zip(torch.autograd.grad(tried.result, tried.live, cotangents, **options), expected, strict=True):
        assert_same(torch.zeros_like(true) if got is None else got, true)


def assert_same(got: Tensor, expected: Tensor) -> None:
    """Equal but for what kernels and references may differ by: relative to the largest number, which is at least 1."""
    allowed = 2e-4 * max(1.0, expected.detach().abs().max().item())
    torch.testing.assert_close(got, expected, rtol=0, atol=allowed)


CHECKS = (assert_vmap_of_closed_over, assert_vmap_of_arguments, assert_vmap_of_cotangents)

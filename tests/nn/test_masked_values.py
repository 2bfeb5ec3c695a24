"""What is masked never matters to a module: values, keys and positions, results and every gradient."""

import pytest
import torch

from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.nn import (
    BagPooling,
    CombinedAttention,
    ContinuousAttention,
    DiscreteAttention,
    EntmaxAttention,
    GateHead,
    MomentHead,
    MultiheadContinuousAttention,
    PooledHead,
    WindowHead,
)
from masked_checks import ALL, FILLERS, assert_never_matters, filled

BATCH, LENGTH, WIDTH, QUERIES = 2, 12, 4, 3
MASKS = {
    "of sequences": torch.arange(LENGTH) < torch.tensor([[9], [5]]),
    "of all": torch.arange(LENGTH) % 4 != 1,
    "none of one": torch.arange(LENGTH) < torch.tensor([[9], [0]]),
}


def line():
    return GaussianBasis.linspace(6, scale=(0.1, 0.5))


def plane():
    return MultivariateGaussianBasis.grid(3, scale=0.05)


def discrete(alpha=1.5, **options):
    return DiscreteAttention(WIDTH, alpha=alpha, **options)


def combined(dim, alpha=1.5):
    return CombinedAttention(discrete(alpha), line() if dim == 1 else plane(), alpha=alpha)


def headed(head, dim, alpha=1.5):
    basis = line() if dim == 1 else plane()
    return ContinuousAttention(basis, alpha=alpha, head=head)


# Their results are tensors; they take no positions.
FINITE = ("discrete", "bags")
MODULES = {
    "discrete": lambda dim: discrete(),
    "discrete, α = 1": lambda dim: discrete(1.0),
    "discrete, α > 2": lambda dim: discrete(2.5),
    "discrete, learned α": lambda dim: discrete(1.4, learnable=True),
    "discrete, dot": lambda dim: discrete(score="dot"),
    "discrete, queries": lambda dim: discrete(query_dim=WIDTH),
    "discrete, dot, queries": lambda dim: discrete(score="dot", query_dim=WIDTH),
    "bags": lambda dim: BagPooling(WIDTH),
    "bags, α = 1": lambda dim: BagPooling(WIDTH, alpha=1.0),
    "bags, learned α": lambda dim: BagPooling(WIDTH, alpha=1.4, learnable=True),
    "combined": combined,
    "combined, α = 1": lambda dim: combined(dim, 1.0),
    "combined, gates": lambda dim: CombinedAttention(
        None, line() if dim == 1 else plane(), head=GateHead(WIDTH, dim=dim)
    ),
    "gates": lambda dim: headed(GateHead(WIDTH, dim=dim), dim),
    "gates, queries": lambda dim: headed(GateHead(WIDTH, dim=dim, query_dim=WIDTH), dim),
    "moments": lambda dim: headed(MomentHead(discrete(), dim=dim), dim),
    "moments, queries": lambda dim: headed(MomentHead(discrete(query_dim=WIDTH), dim=dim), dim),
    "windows": lambda dim: headed(WindowHead(discrete(), windows=3, dim=dim), dim),
    "windows, queries": lambda dim: headed(WindowHead(discrete(query_dim=WIDTH), windows=3, dim=dim), dim),
    "pooled": lambda dim: headed(PooledHead(WIDTH, dim=dim), dim),
    "multihead": lambda dim: MultiheadContinuousAttention(WIDTH, 2, line() if dim == 1 else plane()),
}


def check(name, mask, where, filler):
    """`where` is how positions are told: at the default, on a grid, for each value."""
    dim = 1 if where in ("default", "positions") else 2
    module = MODULES[name](dim)
    may = mask.expand(BATCH, LENGTH).unsqueeze(-1)
    query = torch.randn(BATCH, QUERIES, WIDTH) if "queries" in name or name == "multihead" else None
    options = {"grid": (3, 4)} if where == "grid" else {}
    given, places = [torch.randn(BATCH, LENGTH, WIDTH)], [may]
    if "positions" in where and not name.startswith(FINITE):
        given.append(torch.rand(BATCH, LENGTH) if dim == 1 else torch.rand(BATCH, LENGTH, 2))
        places.append(may.squeeze(-1) if dim == 1 else may)

    def call(values, positions=None):
        named = options if positions is None else {"positions": positions}
        if name.startswith("bags"):
            return module(values, mask=mask)
        if name.startswith("discrete"):
            return module(values, query, mask=mask)
        if name == "multihead":
            return [module(query, values, mask=mask, need_density=False, **named)[0]]
        context, rest = module(values, query=query, mask=mask, **named)
        density = rest[1] if isinstance(rest, tuple) else rest
        return [context, density.mean]

    assert_never_matters(call, given, places, filler, module)


@pytest.mark.parametrize("filler", FILLERS.values(), ids=FILLERS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", MODULES)
def test_values(name, mask, filler):
    check(name, MASKS[mask], "default", filler)


@pytest.mark.parametrize("where", ["positions", "grid", "positions in the plane"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(FINITE)])
def test_values_and_positions(name, mask, where):
    if name == "pooled" and where == "positions in the plane":
        pytest.skip("a convolution in the plane needs a grid")
    check(name, MASKS[mask], where, ALL)


@pytest.mark.parametrize("name", ["combined", "combined, gates", "gates", "moments", "windows", "pooled"])
def test_keys_beside_values(name):
    mask = MASKS["of sequences"]
    module = MODULES[name](1)

    def call(values, keys):
        return [module(values, keys=keys, mask=mask)[0]]

    given = [torch.randn(BATCH, LENGTH, 3), torch.randn(BATCH, LENGTH, WIDTH)]
    assert_never_matters(call, given, [mask.unsqueeze(-1)] * 2, ALL, module)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_pairs_and_scores(score):
    module = discrete(score=score, query_dim=WIDTH)
    pairs = torch.rand(BATCH, QUERIES, LENGTH) > 0.5
    pairs[..., 7:] = False
    query = torch.randn(BATCH, QUERIES, WIDTH)
    seen = pairs.any(1).unsqueeze(-1)
    given = [torch.randn(BATCH, LENGTH, WIDTH)]
    assert_never_matters(lambda values: module(values, query, mask=pairs), given, [seen], ALL, module)
    given.append(torch.randn(BATCH, QUERIES, LENGTH))
    assert_never_matters(lambda values, scores: module(values, scores=scores, mask=pairs), given, [seen, pairs], ALL)
    scores = given[1].masked_fill(~pairs, -torch.inf)
    assert_never_matters(lambda values: module(values, scores=scores), given[:1], [seen], ALL)


@pytest.mark.parametrize(
    "options", [{}, {"alibi": "half"}, {"length_scale": True}, {"length_scale": "adaptive"}, {"alpha": [1.0, 2.0]}]
)
@pytest.mark.parametrize("form", ["mask", "pairs", "lengths", "causal lengths"])
def test_entmax_attention(form, options):
    module = EntmaxAttention(WIDTH, 2, is_causal=form == "causal lengths", **options)
    mask = MASKS["of sequences"]
    named = {"mask": mask} if form == "mask" else {"lengths": torch.tensor([9, 5])}
    if form == "pairs":
        named = {"mask": mask.unsqueeze(1) & (torch.rand(BATCH, QUERIES, LENGTH) > 0.1)}
        mask = named["mask"].any(1)
    given = [torch.randn(BATCH, QUERIES, WIDTH), *torch.randn(2, BATCH, LENGTH, WIDTH)]
    places = [None, mask.unsqueeze(-1), mask.unsqueeze(-1)]
    assert_never_matters(lambda *given: [module(*given, **named)], given, places, ALL, module)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_padding_of_self_attention_does_not_reach_other_queries(alpha):
    module = EntmaxAttention(WIDTH, 2, alpha=alpha)
    x, mask = torch.randn(BATCH, LENGTH, WIDTH), MASKS["of sequences"]
    zeros, other = (module(filled(x, mask.unsqueeze(-1), filler), mask=mask) for filler in (0.0, ALL))
    assert torch.allclose(other[mask], zeros[mask], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("triton_takes_cpu_tensors")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["gates", "combined, gates", "combined", "discrete", "bags"])
def test_triton(name, mask):
    check(name, MASKS[mask], "default", ALL)


class _Quiet(torch.nn.Module):
    """A module that returns its context alone."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, values, mask, positions=None):
        is_finite = isinstance(self.module, BagPooling | DiscreteAttention | EntmaxAttention)
        options = {} if is_finite else {"need_density": False, "positions": positions}
        found = self.module(values, mask=mask, **options)
        return found[0] if isinstance(found, tuple) else found


@pytest.mark.graph
@pytest.mark.parametrize("name", ["bags", "moments", "combined, gates", "self-attention"])
def test_an_exported_module_takes_as_many_sequences_as_positions(name):
    module = _Quiet(EntmaxAttention(WIDTH, 2) if name == "self-attention" else MODULES[name](1)).eval()
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=64)
    given = (torch.randn(BATCH, LENGTH, WIDTH), MASKS["of sequences"], torch.rand(BATCH, LENGTH))
    other = (torch.randn(6, 6, WIDTH), torch.rand(6, 6) > 0.4, torch.rand(6, 6))
    count = 2 if name in ("bags", "self-attention") else 3
    shapes = ({0: batch, 1: length},) * count
    program = torch.export.export(module, given[:count], dynamic_shapes=shapes).module()
    torch.testing.assert_close(program(*other[:count]), module(*other[:count]), rtol=1e-4, atol=1e-4)

"""What every attention module promises: gradients, precision, copies, transforms, graphs, processes."""

import copy
import io
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from contmax.basis import GaussianBasis
from contmax.nn import (
    CombinedAttention,
    ContinuousAttention,
    DiscreteAttention,
    GateHead,
    MomentHead,
    MultiheadContinuousAttention,
    PooledHead,
    WindowHead,
)
from forked import run_on_two

F64 = torch.float64


def basis(learnable: bool = False) -> GaussianBasis:
    return GaussianBasis.linspace(6, (0.15, 0.5), learnable=learnable)


class Given(torch.nn.Module):
    """A continuous attention told (loc, scale) by numbers at hand, to be called as the others are."""

    def __init__(self, **options):
        super().__init__()
        self.attend = ContinuousAttention(basis(options.pop("learnable", False)), **options)

    def forward(self, values, query, **options):
        pair = torch.sigmoid(query[..., 0]), torch.exp(0.3 * query[..., 1] - 1)
        return self.attend(values, pair, **options)


class Queried(torch.nn.Module):
    """A continuous attention with a head, its query passed by position as to the others."""

    def __init__(self, head: torch.nn.Module, **options):
        super().__init__()
        self.attend = ContinuousAttention(basis(options.pop("learnable", False)), head=head, **options)

    def forward(self, values, query, **options):
        return self.attend(values, query=query, **options)


class Heads(MultiheadContinuousAttention):
    """The multi-head attention with its arguments in the order of the others."""

    def forward(self, values, query, **options):
        return super().forward(query, values, **options)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[..., torch.nn.Module]

    def __str__(self) -> str:
        return self.name


def _alpha() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(1.6))


CASES = [
    Case("given", Given),
    Case("given, learned alpha and basis", lambda: Given(alpha=_alpha(), learnable=True)),
    Case("pooled", lambda: Queried(PooledHead(4, query_dim=4, hidden_dim=3), alpha=1.5)),
    Case("moments", lambda: Queried(MomentHead(DiscreteAttention(4, 4, hidden_dim=3)), alpha=1.5)),
    Case("windows", lambda: Queried(WindowHead(DiscreteAttention(4, 4, hidden_dim=3), windows=3), alpha=1.5)),
    Case("gates", lambda: Queried(GateHead(4, query_dim=4, hidden_dim=3), alpha=1.5).eval()),
    Case("combined", lambda: CombinedAttention(DiscreteAttention(4, 4, score="dot"), basis())),
    Case("combined, all learned", lambda: CombinedAttention(DiscreteAttention(4, 4), basis(True), alpha=_alpha())),
    Case("heads", lambda: Heads(4, 2, basis())),
    Case("heads, mixtures, steps", lambda: Heads(4, 2, basis(), num_components=2, num_steps=2)),
    Case("heads, all learned", lambda: Heads(4, 2, basis(True), alpha=_alpha())),
]
every = pytest.mark.parametrize("case", CASES, ids=str)


def inputs(dtype: torch.dtype = torch.float32, batch: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 7, 4, dtype=dtype), torch.randn(batch, 3, 4, dtype=dtype)


@every
def test_an_empty_batch(case):
    attend = case.make()
    values, query = (x.requires_grad_() for x in inputs(batch=0))
    for mask in (None, torch.ones(0, 7, dtype=torch.bool)):
        context = attend(values, query, mask=mask)[0]
        assert context.shape == (0, 3, 4)
        context.sum().backward()
        assert values.grad.shape == values.shape


@every
def test_first_and_second_derivatives(case):
    attend = case.make().double()
    names, parameters = zip(*attend.named_parameters(), strict=True) if list(attend.parameters()) else ((), ())
    values, query = inputs(F64, batch=1)

    def context(values, query, *parameters):
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(attend, state, (values, query), {"need_density": False})[0]

    arguments = (values.requires_grad_(), query.requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(context, arguments, atol=1e-5, rtol=1e-4, fast_mode=True)
    assert torch.autograd.gradgradcheck(context, arguments, atol=1e-3, rtol=1e-2, fast_mode=True)


@every
def test_two_forwards_before_backward(case):
    attend = case.make().double()
    first, second = inputs(F64), inputs(F64)
    for values, query in (first, second):
        values.requires_grad_()
        query.requires_grad_()
    losses = [attend(*pair)[0].square().sum() for pair in (first, second)]
    together = [torch.autograd.grad(loss, pair) for loss, pair in zip(losses, (first, second), strict=True)]
    for pair, got in zip((first, second), together, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(attend(*pair)[0].square().sum(), pair))


@every
def test_copies_and_round_trips(case):
    attend, arguments = case.make(), inputs()
    expected = attend(*arguments)[0]
    torch.testing.assert_close(copy.deepcopy(attend)(*arguments)[0], expected, rtol=0, atol=0)
    buffer = io.BytesIO()
    torch.save(attend.state_dict(), buffer)
    buffer.seek(0)
    fresh = case.make()
    for p in fresh.parameters():
        p.data.add_(0.1)
    fresh(*arguments)  # whatever it remembers of its old self must go
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(fresh(*arguments)[0], expected, rtol=0, atol=0)
    wide = attend.double()
    context = wide(*(x.double() for x in arguments))[0]
    assert context.dtype == F64
    torch.testing.assert_close(context.float(), expected, rtol=1e-4, atol=1e-4)


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(case, dtype):
    attend, arguments = case.make(), inputs()
    arguments = tuple(x.to(dtype).float().requires_grad_() for x in arguments)
    expected = attend(*arguments)[0]
    scale = expected.abs().max().item()
    with torch.autocast("cpu", dtype):
        context = attend(*arguments)[0]
    torch.testing.assert_close(context.float(), expected, rtol=0, atol=0.03 * scale)
    context.float().square().sum().backward()
    assert all(x.grad.isfinite().all() and x.grad.dtype == x.dtype for x in (*arguments, *attend.parameters()))
    low = copy.deepcopy(attend).to(dtype)
    context = low(*(x.to(dtype) for x in arguments))[0]
    assert context.dtype == dtype
    torch.testing.assert_close(context.float(), expected, rtol=0, atol=0.05 * scale)


def test_a_head_speaks_in_full_precision_under_autocast():
    values, query = inputs()
    for attend in (case.make() for case in CASES[2:6]):
        with torch.autocast("cpu", torch.bfloat16):
            _, density = attend(values, query)
        density = getattr(density, "component_distribution", density)  # windows mix several
        assert density.loc.dtype == torch.float32
        assert density.scale.dtype == torch.float32


@every
def test_vmap_over_a_batch_and_over_an_ensemble(case):
    values, query = inputs()
    models = [case.make() for _ in range(3)]
    quiet = {"need_density": False}

    def one(values, query):
        return models[0](values[None], query[None], **quiet)[0][0]

    expected = models[0](values, query)[0]
    torch.testing.assert_close(torch.vmap(one)(values, query), expected, rtol=1e-4, atol=1e-4)
    state = torch.func.stack_module_state(models)

    def member(parameters, buffers):
        return torch.func.functional_call(models[0], (parameters, buffers), (values, query), quiet)[0]

    together = torch.vmap(member)(*state)
    torch.testing.assert_close(together, torch.stack([m(values, query)[0] for m in models]), rtol=1e-4, atol=1e-4)


@every
def test_representations_say_what_they_are(case):
    text = repr(case.make())
    assert "alpha=" in text
    assert "learnable(1.6)" in text or "learned" not in case.name
    assert repr(case.make().to_empty(device="meta"))


# Traces take seconds each: one of every kind, and derivatives of a learned α and basis, and of a head.
@pytest.mark.graph
@pytest.mark.parametrize(
    ("case", "backend"),
    [(CASES[n], "aot_eager_default_partitioner" if n in (1, 2) else "eager") for n in (0, 1, 2, 5, 8)],
    ids=str,
)
def test_compiled_in_one_graph(case, backend):
    torch._dynamo.reset()
    attend, arguments = case.make(), inputs()
    compiled = torch.compile(attend, fullgraph=True, backend=backend)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    got, none = compiled(*arguments, mask=mask, need_density=False)
    expected = attend(*arguments, mask=mask)[0]
    assert none is None or none[1] is None
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    if list(attend.parameters()):
        torch.testing.assert_close(
            torch.autograd.grad(got.square().sum(), tuple(attend.parameters())),
            torch.autograd.grad(expected.square().sum(), tuple(attend.parameters())),
            rtol=1e-3,
            atol=1e-3,
        )


@pytest.mark.graph
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4], CASES[5], CASES[9]], ids=str)
def test_exported_with_a_batch_of_any_size(case):
    attend, arguments = case.make(), inputs()
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = ({0: batch}, {0: batch})

    class Quiet(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = attend

        def forward(self, values, query):
            return self.attend(values, query, need_density=False)[0]

    program = torch.export.export(Quiet(), arguments, dynamic_shapes=shapes)
    other = inputs(batch=5)
    torch.testing.assert_close(program.module()(*other), attend(*other)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.graph
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_inductor_compiles_it():
    torch._dynamo.reset()
    attend, arguments = Given(), inputs()
    got = torch.compile(attend, fullgraph=True)(*arguments, need_density=False)[0]
    torch.testing.assert_close(got, attend(*arguments)[0], rtol=1e-4, atol=1e-4)


def _gradients(rank: int, path: str, state: dict, values: Tensor, query: Tensor, results: Tensor) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    attend = CASES[-1].make()
    attend.load_state_dict(state)
    parallel = torch.nn.parallel.DistributedDataParallel(attend)
    for _ in range(2):  # the second pass meets buffers that were broadcast
        attend.zero_grad()
        parallel(values[rank::2], query[rank::2])[0].square().sum().backward()
    results[rank] = torch.cat([p.grad.flatten() for p in attend.parameters()])
    torch.distributed.barrier()
    # To tear down gloo here may wait for ever: its thread needs the interpreter's lock, which the destructor holds.
    os._exit(0)


def test_two_processes_have_the_gradients_of_one(tmp_path):
    attend, (values, query) = CASES[-1].make(), inputs(batch=4)
    attend(values, query)[0].square().sum().backward()
    expected = torch.cat([p.grad.flatten() for p in attend.parameters()])
    results = torch.zeros(2, len(expected)).share_memory_()
    run_on_two(_gradients, str(tmp_path / "rendezvous"), attend.state_dict(), values, query, results)
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(2 * results[0], expected, rtol=1e-4, atol=1e-5)

"""Every module on a GPU: forward and backward as in float64 on the CPU, nothing waits, graphs, compile, processes."""

import copy

import pytest
import torch

from contmax import nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from cuda_checks import BF16, DEVICE, ON_GPU, Captured, assert_module_accurate, drawn, without_waiting

pytestmark = pytest.mark.gpu


def line():
    return GaussianBasis.linspace(16, scale=(0.1, 0.5))


def plane():
    return MultivariateGaussianBasis.grid(4, scale=0.15)


def seen(result):
    """The context alone: a density is compared through it."""
    return result[0]


def asked(attend, values, query, mask):
    return seen(attend(values, query=query, mask=mask, need_density=False))


def alone(attend, values, query, mask):
    return seen(attend(values, mask=mask, need_density=False))


def bags(pool, values, query, mask):
    return seen(pool(values, mask=mask))


def by_position(attend, values, query, mask):
    return seen(attend(values, query, mask=mask))


def heads(attend, values, query, mask):
    return seen(attend(query, values, mask=mask, need_density=False))


def given(attend, values, query, mask):
    pair = torch.sigmoid(query[..., 0]), torch.exp(0.3 * query[..., 1] - 2)
    return seen(attend(values, pair, mask=mask, need_density=False))


def given_on_plane(attend, values, query, mask):
    # A matrix of unit size times an area, so that its least axis stays well above a cell.
    matrix = 0.05 * torch.diag_embed(torch.exp(0.3 * query[..., 2:4]))
    return seen(attend(values, (torch.sigmoid(query[..., :2]), matrix), mask=mask, need_density=False))


D = 16
CASES = {
    "discrete": (lambda: nn.DiscreteAttention(D, D, alpha=1.5), by_position),
    "discrete, learned α": (lambda: nn.DiscreteAttention(D, D, score="dot", alpha=1.5, learnable=True), by_position),
    "bags": (lambda: nn.BagPooling(D), bags),
    "bags, learned α": (lambda: nn.BagPooling(D, learnable=True), bags),
    "given, α = 1": (lambda: nn.ContinuousAttention(line(), alpha=1.0), given),
    "given, α = 1.5": (lambda: nn.ContinuousAttention(line(), alpha=1.5), given),
    "given, α = 2": (lambda: nn.ContinuousAttention(line()), given),
    "given, learned α": (lambda: nn.ContinuousAttention(line(), alpha=1.5, learnable=True), given),
    "gates": (lambda: nn.ContinuousAttention(line(), embed_dim=D).eval(), alone),
    "gates, asked": (lambda: nn.ContinuousAttention(line(), embed_dim=D, query_dim=D, alpha=1.5).eval(), asked),
    "pooled": (lambda: nn.ContinuousAttention(line(), head=nn.PooledHead(D, query_dim=D)), asked),
    "moments": (lambda: nn.ContinuousAttention(line(), head=nn.MomentHead(nn.DiscreteAttention(D, D))), asked),
    "windows": (lambda: nn.ContinuousAttention(line(), head=nn.WindowHead(nn.DiscreteAttention(D, D))), asked),
    "plane, given": (lambda: nn.ContinuousAttention(plane(), grid=(7, 7)), given_on_plane),
    "plane, gates": (lambda: nn.ContinuousAttention(plane(), embed_dim=D, grid=(7, 7)).eval(), alone),
    "combined": (lambda: nn.CombinedAttention(nn.DiscreteAttention(D, D, alpha=1.5), line()), asked),
    "combined, gates": (lambda: nn.CombinedAttention(None, line(), head=nn.GateHead(D)).eval(), alone),
    "heads": (lambda: nn.MultiheadContinuousAttention(D, 4, line()), heads),
    "heads, learned α": (lambda: nn.MultiheadContinuousAttention(D, 4, line(), alpha=1.5, learnable=True), heads),
    "heads, mixtures, steps": (
        lambda: nn.MultiheadContinuousAttention(D, 2, line(), num_components=2, num_steps=2),
        heads,
    ),
    "heads on a plane": (lambda: nn.MultiheadContinuousAttention(D, 2, plane(), alpha=1.0, grid=(7, 7)), heads),
}
every = pytest.mark.parametrize("case", list(CASES))


def made(case):
    torch.manual_seed(0)
    make, call = CASES[case]
    return make(), call


def inputs():
    mask = torch.rand(6, 49, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[0] = False
    return [drawn(6, 49, D), drawn(6, 3, D, seed=1), mask]


@every
def test_forward_and_backward(case):
    module, call = made(case)
    assert_module_accurate(module, call, inputs(), tolerance=2e-4)


@pytest.mark.parametrize("case", ["discrete", "given, α = 2", "given, learned α", "gates", "heads", "plane, given"])
def test_without_a_mask(case):
    module, call = made(case)
    values, query, _ = inputs()
    assert_module_accurate(module, call, [values, query, None], tolerance=2e-4)


@pytest.mark.parametrize("case", ["discrete", "given, α = 2", "gates", "heads"])
def test_bfloat16_by_autocast(case):
    module, call = made(case)
    module.to(DEVICE)
    values, query, mask = (x.to(DEVICE) for x in inputs())

    def step():
        with torch.autocast(DEVICE, dtype=BF16):
            context = call(module, values, query, mask)
        gradients = torch.autograd.grad(context.float().square().sum(), list(module.parameters()), allow_unused=True)
        return [context, *(g for g in gradients if g is not None)]

    if list(module.parameters()):
        results = without_waiting(step)
        assert all(result.isfinite().all() for result in results)
        torch.testing.assert_close(results[0].float(), call(module, values, query, mask), rtol=0.1, atol=0.1)


MAPS = {
    "Sparsemax": (nn.Sparsemax, lambda m, x: m(x)),
    "Entmax": (lambda: nn.Entmax(1.5), lambda m, x: m(x)),
    "Entmax, one α per head": (lambda: nn.Entmax(1.4, learnable=True, num_heads=4, head_dim=1), lambda m, x: m(x)),
}


@pytest.mark.parametrize("name", list(MAPS))
def test_maps(name):
    make, call = MAPS[name]
    assert_module_accurate(make(), call, [drawn(2, 4, 8, 100)], tolerance=1e-5)


@pytest.mark.parametrize("learnable", [False, True])
def test_loss(learnable):
    loss = nn.FenchelYoungLoss(1.5, learnable=learnable, label_smoothing=0.1, weight=torch.linspace(0.5, 2.0, 100))
    target = torch.randint(0, 100, (12,), generator=torch.Generator().manual_seed(1))
    assert_module_accurate(loss, lambda m, z, y: m(z, y), [drawn(12, 100), target], tolerance=1e-5)


def test_training_with_hidden_values():
    attend = nn.ContinuousAttention(line(), embed_dim=D).to(DEVICE).train()
    values, _, mask = (x.to(DEVICE) for x in inputs())
    values.requires_grad_()

    def step():
        context = attend(values, mask=mask)[0]
        return context, *torch.autograd.grad(context.square().sum(), values)

    context, gradient = without_waiting(step)
    assert not context[0].any()
    assert gradient.isfinite().all()


# -- graphs, compile, processes ----------------------------------------------------------------------------------------


@every
def test_captured_in_a_graph(case):
    module, call = made(case)
    module.to(DEVICE)
    values, query, mask = (x.to(DEVICE) for x in inputs())
    values.requires_grad_()
    wanted = [values, *module.parameters()]

    def step():
        context = call(module, values, query, mask)
        gradients = torch.autograd.grad(context.square().sum(), wanted, allow_unused=True)
        return [context.detach(), *(g for g in gradients if g is not None)]

    graph = Captured(step)
    with torch.no_grad():
        values.copy_(drawn(6, 49, D, seed=7))
        query.copy_(drawn(6, 3, D, seed=8))
    for got, expected in zip(graph.replay(), step(), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.graph
@pytest.mark.parametrize(
    ("case", "compiler"),
    [("given, α = 2", "inductor"), ("gates", "aot_eager"), ("heads", "aot_eager"), ("plane, given", "aot_eager")],
)
def test_compiled(case, compiler):
    module, call = made(case)
    module.to(DEVICE)
    values, query, mask = (x.to(DEVICE) for x in inputs())
    values.requires_grad_()
    traced = torch.compile(lambda *arguments: call(module, *arguments), fullgraph=True, backend=compiler)

    def step(context):
        return context, *torch.autograd.grad(context.square().sum(), values)

    got = without_waiting(lambda: step(traced(values, query, mask)))
    for ours, expected in zip(got, step(call(module, values, query, mask)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4)


def test_distributed_data_parallel(tmp_path):
    module, call = made("heads, learned α")
    module.to(DEVICE)
    values, query, mask = (x.to(DEVICE) for x in inputs())
    call(module, values, query, mask).square().sum().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    there = {"device_id": torch.device("cuda", 0)} if ON_GPU else {}
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("nccl" if ON_GPU else "gloo", store=store, rank=0, world_size=1, **there)
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(module), device_ids=[0] if ON_GPU else None)
        wrapped.zero_grad()
        call(wrapped, values, query, mask).square().sum().backward()
        for parameter, gradient in zip(wrapped.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()

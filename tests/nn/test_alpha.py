"""α of every module that has one: given, or learned inside (1, 2) by one parametrisation."""

import copy

import pytest
import torch

import contmax
from contmax.basis import GaussianBasis

F64 = torch.float64
nn = contmax.nn


def basis() -> GaussianBasis:
    return GaussianBasis.linspace(6, 0.2)


VALUES, QUERY = torch.randn(2, 7, 4, dtype=F64), torch.randn(2, 3, 4, dtype=F64)
PAIR = torch.tensor([0.3, 0.6], dtype=F64), torch.tensor([0.1, 0.2], dtype=F64)
TARGET = torch.tensor([1, 0])
# How a module is made with an α, called, and which of its parts has the α.
MODULES = {
    "entmax": (lambda **a: nn.Entmax(**a), lambda m: m(VALUES), lambda m: m),
    "loss": (lambda **a: nn.FenchelYoungLoss(**a), lambda m: m(VALUES[..., 0], TARGET), lambda m: m),
    "discrete": (lambda **a: nn.DiscreteAttention(4, **a), lambda m: m(VALUES)[0], lambda m: m),
    "bags": (lambda **a: nn.BagPooling(4, **a), lambda m: m(VALUES)[0], lambda m: m),
    "continuous": (lambda **a: nn.ContinuousAttention(basis(), **a), lambda m: m(VALUES, PAIR)[0], lambda m: m),
    "combined": (
        lambda **a: nn.CombinedAttention(nn.DiscreteAttention(4), basis(), **a),
        lambda m: m(VALUES)[0],
        lambda m: m.continuous,
    ),
    "heads": (
        lambda **a: nn.MultiheadContinuousAttention(4, 2, basis(), **a),
        lambda m: m(QUERY, VALUES)[0],
        lambda m: m,
    ),
}
every = pytest.mark.parametrize(("make", "call", "part"), MODULES.values(), ids=MODULES)


@every
def test_a_learned_alpha_is_the_same_thing_everywhere(make, call, part):
    module = make(alpha=1.3, learnable=True).double()
    owner = part(module)
    heads = (2,) if isinstance(module, nn.MultiheadContinuousAttention) else ()
    assert owner.alpha.shape == owner.alpha_logit.shape == heads
    torch.testing.assert_close(owner.alpha, torch.full(heads, 1.3, dtype=F64), rtol=1e-6, atol=0)
    assert "alpha=learnable(1.3" in repr(module)
    call(module).square().sum().backward()
    assert (owner.alpha_logit.grad != 0).all()
    with torch.no_grad():
        owner.alpha_logit.fill_(0.7)
    fresh = make(alpha=1.6, learnable=True).double()
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(call(fresh), call(module), rtol=0, atol=0)
    for far in (-1e4, 1e4):
        with torch.no_grad():
            owner.alpha_logit.fill_(far)
        assert ((owner.alpha > 1) & (owner.alpha < 2)).all()
        low = copy.deepcopy(module).bfloat16()
        assert ((part(low).alpha > 1) & (part(low).alpha < 2)).all()
    with pytest.raises(ValueError, match=r"a learned alpha must start inside \(1, 2\); got 2.0"):
        make(alpha=2.0, learnable=True)
    with pytest.raises(AttributeError, match="alpha is learned here"):
        owner.alpha = 1.5


@every
def test_a_learned_alpha_has_the_gradient_of_a_tensor(make, call, part):
    learned, given = (
        make(alpha=1.4, learnable=True).double(),
        make(alpha=torch.nn.Parameter(torch.tensor(1.4))).double(),
    )
    given.load_state_dict({k: v for k, v in learned.state_dict().items() if "alpha" not in k}, strict=False)
    with torch.no_grad():
        part(given).alpha.copy_(part(learned).alpha.reshape(-1)[0])
    torch.testing.assert_close(call(learned), call(given))
    call(learned).square().sum().backward()
    call(given).square().sum().backward()
    sigmoid = torch.sigmoid(part(learned).alpha_logit.detach())
    slope = (1 - 2e-4) * sigmoid * (1 - sigmoid)
    torch.testing.assert_close((part(learned).alpha_logit.grad / slope).sum(), part(given).alpha.grad)


@every
def test_a_tensor_alpha_is_saved_and_moved(make, call, part):
    module = make(alpha=torch.tensor(1.4)).double()
    assert part(module).alpha.dtype == F64
    assert not any("alpha" in name for name, _ in module.named_parameters())
    fresh = make(alpha=torch.tensor(1.9)).double()
    fresh.load_state_dict(module.state_dict())
    assert part(fresh).alpha == part(module).alpha
    torch.testing.assert_close(call(fresh), call(module), rtol=0, atol=0)
    assert "alpha=tensor(1.4)" in repr(module)
    number = make(alpha=1.4).double()
    part(number).alpha = 1.9
    assert part(number).alpha == 1.9


@every
@pytest.mark.parametrize("alpha", [{"alpha": 1.4, "learnable": True}, {"alpha": 1.4}], ids=["learned", "number"])
def test_deferred_initialisation(make, call, part, alpha):
    real = make(**alpha).double()
    with torch.device("meta"):
        empty = make(**alpha)
    assert all(t.is_meta for t in (*empty.parameters(), *empty.buffers()))
    assert "alpha=" in repr(empty)
    loaded = copy.deepcopy(empty).to_empty(device="cpu").double()
    loaded.load_state_dict(real.state_dict())
    torch.testing.assert_close(call(loaded), call(real), rtol=0, atol=0)
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(real.state_dict(), assign=True)
    torch.testing.assert_close(call(assigned), call(real), rtol=0, atol=0)
    reset = copy.deepcopy(empty).to_empty(device="cpu")
    for module in reset.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    own = {k: v for k, v in reset.state_dict().items() if any(s in k for s in ("alpha", "basis", "anchors"))}
    for name, value in own.items():
        torch.testing.assert_close(value.double(), real.state_dict()[name])
    assert call(reset.double()).isfinite().all()


def test_an_unknown_alpha_cannot_be_reset():
    with torch.device("meta"):
        module = nn.ContinuousAttention(basis(), alpha=torch.tensor(1.5))
    with pytest.raises(RuntimeError, match="alpha was given as a tensor on the meta device"):
        module.to_empty(device="cpu").reset_parameters()


def test_each_head_starts_with_its_own_and_entmax_keeps_a_parameter():
    attend = nn.MultiheadContinuousAttention(4, 2, basis(), alpha=torch.tensor([1.2, 1.7]), learnable=True)
    torch.testing.assert_close(attend.alpha, torch.tensor([1.2, 1.7]))
    given = nn.MultiheadContinuousAttention(4, 2, basis(), alpha=[1.2, 1.7])
    torch.testing.assert_close(given.alpha, torch.tensor([1.2, 1.7]))
    for options in ({"alpha": [1.2] * 3}, {"alpha": torch.full((3,), 1.2), "learnable": True}):
        with pytest.raises(ValueError, match=r"alpha must have shape \(\) or \(2,\), one per head; got \(3,\)"):
            nn.MultiheadContinuousAttention(4, 2, basis(), **options)
    own = torch.nn.Parameter(torch.tensor(1.7))
    assert nn.Entmax(own).alpha is own


def test_a_head_on_the_plane_can_be_deferred():
    make = lambda: nn.ContinuousAttention(  # noqa: E731
        contmax.basis.MultivariateGaussianBasis.grid(3, 0.3), head=nn.PooledHead(4, dim=2)
    )
    real = make()
    with torch.device("meta"):
        empty = make()
    empty.to_empty(device="cpu").load_state_dict(real.state_dict())
    values = torch.randn(2, 6, 4)
    torch.testing.assert_close(empty(values, grid=(2, 3))[0], real(values, grid=(2, 3))[0], rtol=0, atol=0)


# Heads hold a continuous attention; compiled and exported they are in test_attention_contracts.
@pytest.mark.graph
@pytest.mark.parametrize("name", ["discrete", "bags", "continuous"])
def test_a_learned_alpha_compiles(name):
    make, call, part = MODULES[name]
    torch._dynamo.reset()
    module = make(alpha=1.4, learnable=True).double()
    quiet = {"need_density": False} if name == "continuous" else {}
    arguments = (VALUES, PAIR) if name == "continuous" else (VALUES,)
    compiled = torch.compile(module, fullgraph=True, backend="eager")(*arguments, **quiet)[0]
    torch.testing.assert_close(compiled, call(module))
    got = torch.autograd.grad(compiled.square().sum(), part(module).alpha_logit)
    torch.testing.assert_close(got, torch.autograd.grad(call(module).square().sum(), part(module).alpha_logit))


def test_what_stands_beside_alpha_is_reset_too():
    """`to_empty` leaves any numbers, also in slopes, scales and a constant query."""
    options = {"alibi": "half", "length_scale": True}
    with torch.device("meta"):
        made = [contmax.nn.EntmaxAttention(8, 4, **options), contmax.nn.DiscreteAttention(4, score="dot")]
    for module in made:
        module.to_empty(device="cpu")
        tensors = [*module.parameters(), *module.buffers()]
        with torch.no_grad():
            for tensor in tensors:
                tensor.fill_(torch.nan)
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        assert all(tensor.isfinite().all() for tensor in tensors)
    expected = contmax.nn.EntmaxAttention(8, 4, **options)
    assert torch.equal(made[0].slopes, expected.slopes)
    assert torch.equal(made[0].length_scale, expected.length_scale)

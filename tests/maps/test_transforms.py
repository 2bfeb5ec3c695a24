"""torch.func, torch.compile, torch.export and ONNX: the maps are ordinary citizens of all of them."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import contmax

F64 = torch.float64
ALPHAS = [0.7, 1.0, 1.3, 1.5, 2.0, 3.0]


def named(alpha):
    return f"{tuple(alpha.shape)}" if isinstance(alpha, torch.Tensor) else str(alpha)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_vmap_over_scores_and_alpha(alpha):
    x = torch.randn(4, 3, 6, dtype=F64)
    torch.testing.assert_close(vmap(lambda x: contmax.entmax(x, alpha))(x), contmax.entmax(x, alpha))
    torch.testing.assert_close(
        vmap(lambda x: contmax.entmax(x, alpha, 0), in_dims=1, out_dims=1)(x), contmax.entmax(x, alpha, 0)
    )
    index = torch.tensor([0.7, 1.2, 2.0, 2.6], dtype=F64)
    torch.testing.assert_close(vmap(contmax.entmax)(x, index), contmax.entmax(x, index.view(4, 1, 1)))
    torch.testing.assert_close(
        vmap(lambda a: contmax.entmax(x[0], a))(index), contmax.entmax(x[0].expand(4, 3, 6), index.view(4, 1, 1))
    )


@pytest.mark.parametrize("alpha", ALPHAS)
def test_jacobians_agree_and_equal_the_covariance(alpha):
    x = torch.randn(6, dtype=F64)
    p = contmax.entmax(x, alpha)
    s = torch.where(p > 0, p, 1) ** (2 - alpha) * (p > 0)
    expected = torch.diag(s) - torch.outer(s, s) / s.sum()
    torch.testing.assert_close(jacrev(lambda x: contmax.entmax(x, alpha))(x), expected)
    torch.testing.assert_close(jacfwd(lambda x: contmax.entmax(x, alpha))(x), expected)


@pytest.mark.parametrize("alpha", [1.3, 1.5, 2.0])
def test_jvp_vjp_and_hessians(alpha):
    x, t, g = torch.randn(3, 2, 5, dtype=F64)
    index = torch.full((2, 1), alpha, dtype=F64)
    value, tangent = jvp(contmax.entmax, (x, index), (t, torch.ones_like(index)))
    _, pull = vjp(contmax.entmax, x, index)
    gx, ga = pull(g)
    torch.testing.assert_close((tangent * g).sum(), (gx * t).sum() + ga.sum())
    torch.testing.assert_close(value, contmax.entmax(x, index))

    def objective(x):
        return contmax.entmax(x, alpha).square().sum()

    torch.testing.assert_close(hessian(objective)(x), jacrev(jacrev(objective))(x))
    torch.testing.assert_close(jacfwd(jacrev(objective))(x), jacrev(jacfwd(objective))(x))
    torch.testing.assert_close(
        vmap(grad(objective))(torch.stack([x, t])), torch.stack([grad(objective)(x), grad(objective)(t)])
    )


@pytest.mark.parametrize(
    "alpha", [*ALPHAS, torch.tensor(1.3, dtype=F64), torch.full((1, 5), 3.0, dtype=F64)], ids=named
)
def test_dual_numbers_along_any_axis(alpha):
    x, t = torch.randn(2, 4, 5, dtype=F64)
    with forward_ad.dual_level():
        p = contmax.entmax(forward_ad.make_dual(x, t), alpha, 0)
        tangent = forward_ad.unpack_dual(p).tangent
    torch.testing.assert_close(tangent, jvp(lambda x: contmax.entmax(x, alpha, 0), (x,), (t,))[1])


@pytest.mark.graph
def test_compiles_whole_with_dynamic_shapes():
    # All in one program: a trace takes seconds.
    def attend(x, index, mask):
        return [contmax.entmax(x, alpha, mask=mask, temperature=0.7) for alpha in (1.0, 1.5, index)]

    torch._dynamo.reset()
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager_default_partitioner")
    for shape in ((4, 7), (3, 19)):
        x = torch.randn(shape, dtype=F64, requires_grad=True)
        index = torch.full((shape[0], 1), 1.4, dtype=F64, requires_grad=True)
        mask = torch.rand(shape) > 0.2
        got, expected = compiled(x, index, mask), attend(x, index, mask)
        torch.testing.assert_close(got, expected)
        cotangents = list(torch.randn(3, *shape, dtype=F64))
        gradients = [torch.autograd.grad(results, (x, index), cotangents) for results in (got, expected)]
        torch.testing.assert_close(*gradients)


@pytest.mark.graph
@pytest.mark.parametrize("alpha", [4.0, "tensor", "vmapped"])
def test_a_compiled_map_beyond_two_is_a_few_nodes(alpha, backend):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd  # the compiler takes a second to import

    nodes = []

    def counted(graph, _):
        nodes.append(len(graph.graph.nodes))
        return make_boxed_func(graph.forward)

    def attend(x, index):
        if alpha == "vmapped":
            # torch.compile does not differentiate what it traces through vmap as an autograd.Function.
            with torch.no_grad():
                return vmap(contmax.entmax)(x, index[:, 0])
        return contmax.entmax(x, 4.0 if alpha == 4.0 else index, mask=x < 2)

    torch._dynamo.reset()
    counting = aot_autograd(fw_compiler=counted, bw_compiler=counted)
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend=counting)
    index = torch.tensor([[1.5], [2.5], [30.0]], dtype=F64, requires_grad=True)
    for length in (7, 19):
        x = torch.randn(3, length, dtype=F64, requires_grad=True)
        g = torch.randn(3, length, dtype=F64)
        got, expected = compiled(x, index), attend(x, index)
        torch.testing.assert_close(got, expected)
        if alpha != "vmapped":
            inputs = (x,) if alpha == 4.0 else (x, index)
            torch.testing.assert_close(torch.autograd.grad(got, inputs, g), torch.autograd.grad(expected, inputs, g))
    assert max(nodes) < 40


@pytest.mark.graph
@pytest.mark.parametrize("backend", ["compiled"], indirect=True)
def test_a_compiled_map_is_one_operator_each_way_and_compiled_once_for_all_lengths(backend):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    programs = {"forward": [], "backward": []}

    def keep(way):
        def compiler(graph, _):
            calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
            programs[way].append([name for name in calls if "getitem" not in name and "sym_size" not in name])
            return make_boxed_func(graph.forward)

        return compiler

    torch._dynamo.reset()
    counting = aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"))
    compiled = torch.compile(contmax.entmax, fullgraph=True, backend=counting)
    for length in (7, 19, 40, 33):
        x = torch.randn(3, length, requires_grad=True)
        p = compiled(x)
        torch.testing.assert_close(p, contmax.entmax(x))
        g = torch.randn_like(p)
        torch.testing.assert_close(torch.autograd.grad(p, x, g), torch.autograd.grad(contmax.entmax(x), x, g))
    # The first length has a program of its own, and all others have one.
    assert programs["forward"] == [["contmax.entmax.default"]] * 2
    assert programs["backward"] == [["contmax.entmax_backward.default"]] * 2


@pytest.mark.graph
def test_compiles_to_machine_code(backend):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: contmax.sparsemax(x).square().sum(), fullgraph=True)
    x = torch.randn(8, 33, requires_grad=True)
    expected = contmax.sparsemax(x).square().sum()
    torch.testing.assert_close(compiled(x), expected)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), torch.autograd.grad(expected, x))


class _Attentions(torch.nn.Module):
    """One after the other: to export a program takes seconds, however small it is."""

    def __init__(self, *alphas):
        super().__init__()
        self.alphas = alphas

    def forward(self, scores, mask):
        return [contmax.entmax(scores, alpha, mask=mask) for alpha in self.alphas]


# What is exported has no kernels in it: once is enough.
exported = pytest.mark.parametrize("backend", ["compiled"], indirect=True)


@exported
@pytest.mark.graph
def test_exports_without_our_operators_and_onnx_matches_onnxruntime(tmp_path):
    # Softmax, Newton's method, sorting; ONNX translates node by node, seconds for each index.
    length = torch.export.Dim("length", min=2, max=16)
    example = (torch.randn(3, 11), torch.rand(3, 11) > 0.3)
    attend = _Attentions(1.0, 1.5, 3.0).eval()
    program = torch.export.export(attend, example, dynamic_shapes=({1: length}, {1: length}))
    assert "contmax" not in str(program.graph)
    # The search over sorted scores has the steps that the longest row needs, not those of any row.
    assert str(program.graph).count("aten.gather") == 4 + 2
    x, mask = torch.randn(3, 13), torch.rand(3, 13) > 0.3
    torch.testing.assert_close(program.module()(x, mask), attend(x, mask))

    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'contmax[onnx]'")
    path = tmp_path / "attention.onnx"
    torch.onnx.export(program, dynamo=True, verbose=False, optimize=False).save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x, mask = 3 * torch.randn(3, 15), torch.rand(3, 15) > 0.3
    mask[1] = False
    names = [i.name for i in session.get_inputs()]
    got = session.run(None, dict(zip(names, (x.numpy(), mask.numpy()), strict=True)))
    for answer, expected in zip(got, attend(x, mask), strict=True):
        torch.testing.assert_close(torch.from_numpy(answer), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("alpha", [*ALPHAS, 40.0, torch.tensor([[0.7], [1.5], [3.0]], dtype=F64)], ids=named)
def test_a_batch_of_cotangents(alpha):
    x = torch.randn(3, 7, dtype=F64, requires_grad=True)
    p = contmax.entmax(x, alpha)
    cotangents = torch.randn(5, 3, 7, dtype=F64)
    cotangents[0] = 1
    (together,) = torch.autograd.grad(p, x, cotangents, is_grads_batched=True, create_graph=True)
    alone = torch.stack([torch.autograd.grad(p, x, g, create_graph=True)[0] for g in cotangents])
    torch.testing.assert_close(together, alone)
    # A cotangent without any slope is not divided by when the gradients are differentiated again.
    seconds = [torch.autograd.grad(first.square().sum(), x, retain_graph=True) for first in (together, alone)]
    torch.testing.assert_close(*seconds)
    expected = jacrev(lambda x: contmax.entmax(x, alpha))(x.detach())
    for strategy in ("reverse-mode", "forward-mode"):
        jacobian = torch.autograd.functional.jacobian(
            lambda x: contmax.entmax(x, alpha), x.detach(), vectorize=True, strategy=strategy
        )
        torch.testing.assert_close(jacobian, expected)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
def test_what_tracers_are_told_of_the_operators_is_what_they_return(dtype, backend):
    """Shapes, strides and dtypes without numbers: Ω* is in float64 whatever the scores are in."""
    x, g = torch.randn(2, 5, 3, dtype=dtype).mT
    mask, per_row = torch.rand(3, 5) > 0.3, torch.full((3, 1), 1.7, dtype=dtype)
    p, operators = contmax.entmax(x, 1.7), torch.ops.contmax
    name = "numba" if backend == "compiled" else "torch"
    checks = ("test_schema", "test_faketensor")
    for alpha in (None, per_row):
        torch.library.opcheck(operators.regularized_max.default, (x, alpha, 1.7, name), test_utils=checks)
        for weights in (None, torch.rand(1, 5, dtype=dtype) + 0.1):
            ours = name if weights is None else "torch"
            torch.library.opcheck(
                operators.entmax.default, (x, alpha, 1.7, mask, weights, dtype, ours), test_utils=checks
            )
            for needs_alpha in (alpha is not None, False):
                arguments = (p, g, alpha, 1.7, weights, dtype, needs_alpha, ours)
                torch.library.opcheck(operators.entmax_backward.default, arguments, test_utils=checks)


@pytest.mark.parametrize("alpha", [1.5, 2.0, 2.5, torch.tensor(1.5), torch.tensor(2.5)], ids=str)
def test_a_tangent_off_the_support_does_not_matter(alpha):
    x, inside = torch.tensor([[3.0, 2.9, -9.0, -9.5]]), torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    outside = torch.tensor([[1.0, 2.0, torch.nan, torch.inf]])
    assert ((contmax.entmax(x, alpha) > 0) == (inside > 0)).all()
    found, expected = (torch.func.jvp(lambda x: contmax.entmax(x, alpha), (x,), (v,))[1] for v in (outside, inside))
    assert (expected[:, :2] != 0).all()
    torch.testing.assert_close(found, expected)

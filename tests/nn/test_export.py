"""Attention outside of Python: programs of torch.export, and ONNX against onnxruntime; older tracers are refused."""

import warnings

import pytest
import torch
from docs_pages import DOCS, program

import contmax
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.nn import (
    BagPooling,
    CombinedAttention,
    ContinuousAttention,
    DiscreteAttention,
    GateHead,
    MultiheadContinuousAttention,
)

# The graph of ONNX has nodes for each basis function.
LINE, PLANE = GaussianBasis.covering(3), MultivariateGaussianBasis.covering(2)
MASK = torch.arange(12) < torch.tensor([[12], [7]])
PLACES = torch.tensor([0.3, 0.6]), torch.tensor([0.1, 0.2])
ELLIPSES = torch.tensor([[0.3, 0.4], [0.6, 0.5]]), torch.tensor([[[0.1, 0.02], [0.02, 0.2]], [[0.3, 0.0], [0.0, 0.1]]])


class Context(torch.nn.Module):
    """A graph returns tensors: the context alone, of an attention called with these names."""

    def __init__(self, attend, *names):
        super().__init__()
        self.attend, self.names = attend, names

    def forward(self, values, *others):
        named = dict(zip(self.names, others, strict=True))
        if "loc" in named:
            named["density"] = named.pop("loc"), named.pop("scale")
        return self.attend(values, **named, need_density=False)[0]


class Pooled(torch.nn.Module):
    """The pooled vectors alone, of bags with a mask."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool

    def forward(self, values, mask):
        return self.pool(values, mask=mask)[0]


CASES = {
    "given place, α = 1.5, masked": (
        lambda: Context(ContinuousAttention(LINE, alpha=1.5), "loc", "scale", "mask"),
        (*PLACES, MASK),
    ),
    # Without positions it is on the page, below.
    "learned place, positions": (
        lambda: Context(ContinuousAttention(LINE, embed_dim=4, alpha=4 / 3), "positions", "mask"),
        (torch.linspace(0.05, 0.95, 12).square().expand(2, -1), MASK),
    ),
    "given ellipse": (lambda: Context(ContinuousAttention(PLANE, grid=(3, 4)), "loc", "scale"), ELLIPSES),
    "learned ellipse": (lambda: Context(ContinuousAttention(PLANE, embed_dim=4, grid=(3, 4))), ()),
    "many queries": (lambda: Context(MultiheadContinuousAttention(4, 2, LINE), "values"), (torch.randn(2, 12, 4),)),
    "bags": (lambda: Pooled(BagPooling(4)), (MASK,)),
    "combined": (lambda: Context(CombinedAttention(DiscreteAttention(4, alpha=1.5), LINE), "mask"), (MASK,)),
}


class _Each(torch.nn.Module):
    """The cases side by side, each with its own tensors: an export takes seconds, however small it is."""

    def __init__(self):
        super().__init__()
        self.attentions = torch.nn.ModuleList(make() for make, _ in CASES.values())

    def forward(self, values, others):
        return [attend(values, *more) for attend, more in zip(self.attentions, others, strict=True)]


@pytest.mark.graph
def test_onnx_matches_onnxruntime(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'contmax[onnx]'")
    attend, path = _Each().eval(), tmp_path / "attention.onnx"
    others = [tuple(x.clone() for x in more) for _, more in CASES.values()]
    torch.onnx.export(attend, (torch.randn(2, 12, 4), others), dynamo=True, verbose=False, optimize=False).save(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    values = torch.randn(2, 12, 4)
    tensors = [values, *(x for more in others for x in more)]
    names = [argument.name for argument in session.get_inputs()]
    found = session.run(None, {name: x.numpy() for name, x in zip(names, tensors, strict=True)})
    for name, got, expected in zip(CASES, found, attend(values, others), strict=True):
        torch.testing.assert_close(
            torch.from_numpy(got), expected, rtol=1e-4, atol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
        )


@pytest.mark.graph
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"alpha": 1.5, "learnable": True}, "which ONNX does not have. Export an attention with the number"),
        ({"alpha": 1.7}, "α = 1.7 needs complex numbers in float64, for which onnxruntime has no operations"),
    ],
)
def test_alphas_that_onnx_cannot_compute_are_refused_in_words(options, says):
    pytest.importorskip("onnxscript", reason="pip install 'contmax[onnx]'")
    attend = Context(ContinuousAttention(LINE, **options), "loc", "scale").eval()
    with pytest.raises(torch.onnx.OnnxExporterError) as raised:
        torch.onnx.export(attend, (torch.randn(2, 12, 4), *PLACES), dynamo=True, verbose=False)
    assert says in str(raised.value)


TRACED = {
    "entmax": lambda x: contmax.entmax(x, 1.5),
    "sparsemax": contmax.sparsemax,
    "entmax with a learned α": lambda x: contmax.entmax(x, torch.tensor(1.7, requires_grad=True)),
    "loss": lambda x: contmax.losses.entmax_loss(x[0], torch.zeros(12, dtype=torch.int64), 1.5),
    "attention": lambda x: contmax.entmax_attention(x, x, x),
    "signal": lambda x: contmax.fit_signal(x, LINE).coefficients,
    "density": lambda x: contmax.densities.TruncatedParabola(x[..., 0], 0.1).density(x[..., 1]),
    "expectation": lambda x: contmax.expectation(torch.distributions.Normal(x[..., 0], 0.1), LINE),
    "given place": lambda x: ContinuousAttention(LINE)(x, PLACES)[0],
    "learned place": lambda x: ContinuousAttention(LINE, embed_dim=4)(x)[0],
    "gates": lambda x: GateHead(4)(x, alpha=2.0).mean,
    "discrete": lambda x: DiscreteAttention(4, alpha=1.5)(x)[0],
    "bags": lambda x: BagPooling(4)(x)[0],
    "multihead": lambda x: MultiheadContinuousAttention(4, 2, LINE)(x, x)[0],
    "multihead entmax": lambda x: contmax.nn.EntmaxAttention(4, 2)(x, x, x)[0],
}


class Traced(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.graph
@pytest.mark.parametrize("function", TRACED.values(), ids=TRACED)
@pytest.mark.parametrize("gradients", [True, False])
def test_tracers_that_keep_values_of_the_example_are_refused(function, gradients, tmp_path):
    x = torch.rand(2, 12, 4, requires_grad=gradients)
    says = r"torch\.jit\.trace and torch\.onnx\.export\(dynamo=False\) .*dynamo=True"
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")
        for trace in (
            lambda: torch.jit.trace(Traced(function), (x,)),
            lambda: torch.onnx.export(Traced(function), (x,), tmp_path / "old.onnx", dynamo=False),
        ):
            with pytest.raises(NotImplementedError, match=says) as raised:
                trace()
            assert "\n" not in str(raised.value)
    function(x)


def test_modules_that_only_stand_beside_ours_can_be_traced():
    beside = torch.jit.trace(torch.nn.Linear(4, 4), (torch.randn(2, 4),))
    assert beside(torch.randn(3, 4)).shape == (3, 4)


@pytest.mark.graph
@pytest.mark.filterwarnings("ignore:# The axis name. batch will not be used:UserWarning")
def test_the_page_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="pip install 'contmax[onnx]'")
    monkeypatch.chdir(tmp_path)
    exec(compile(program(DOCS / "export.md"), "export.md", "exec"), {"__name__": "page"})

"""All kernels through the front end of Triton's compiler, for a device that need not be there.

The interpreter, in which the other tests run, takes what the compiler refuses: names that change their type in a loop,
branches that disagree. Run as a program, because the interpreter is chosen when triton is imported:

    python tests/kernels/front_end.py    # prints the kernels, and what the compiler says of those that it refuses
"""

import ast
import functools
import itertools
import sys
from typing import Any

import torch
from torch import Tensor
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.compiler.code_generator import ASTFunction, CodeGenerator, CompilationError, str_to_ty
from triton.language import constexpr
from triton.runtime.jit import JITFunction, KernelParam

import contmax
from contmax import _backend, losses, nn
from contmax.basis import GaussianBasis, MultivariateGaussianBasis
from contmax.kernels.gpu import _triton_private

HOPPER = make_backend(GPUTarget("cuda", 90, 32))
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
}
TYPES |= {torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8", torch.bool: "*i1"}
SEEN: dict[Any, str | None] = {}


def type_of(value: Any, parameter: KernelParam) -> str:
    """As Triton sees an argument; numbers that are 1 are compiled in, where nothing forbids it."""
    is_one = type(value) is int and value == 1 and not parameter.do_not_specialize
    if parameter.is_constexpr or value is None or is_one:
        return "constexpr"
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    return "fp32" if isinstance(value, float) else "i32"


class Program:
    """What the kernels have become so far. In one program a helper of many kernels is made once for the same types."""

    def __init__(self) -> None:
        self.context = ir.context()
        ir.load_dialects(self.context)
        HOPPER.load_dialects(self.context)
        self.module = ir.builder(self.context).create_module()
        self.returned_types: dict[str, Any] = {}

    def add(self, kernel: JITFunction, types: list[Any], options: Any) -> None:
        CodeGenerator(
            self.context,
            ASTFunction([], types, {}),
            kernel.get_capture_scope(),
            f"{kernel.fn.__name__}_{len(SEEN)}",
            kernel,
            is_kernel=True,
            is_gluon=False,
            options=options,
            codegen_fns=HOPPER.get_codegen_implementation(options),
            module_map=HOPPER.get_module_map(),
            module=self.module,
            function_types=self.returned_types,
            file_name="",
        ).visit(kernel.parse())


PROGRAMS = [Program()]


def visited(generator: CodeGenerator, node: ast.AST | None) -> Any:
    """As the compiler visits a node of a kernel's tree, but without noting where in a file every operation stands."""
    if node is None:
        return None
    before, generator.cur_node = generator.cur_node, node
    try:
        result = ast.NodeVisitor.visit(generator, node)
    except CompilationError:
        raise
    except Exception as error:
        raise CompilationError(generator.jit_fn.src, generator.cur_node, repr(error)) from None
    generator.cur_node = before
    return result


def parsed(kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In the place of a launch."""
    options = {name: named.pop(name) for name in list(named) if name not in kernel.arg_names}
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | named
    types = {p.name: type_of(values[p.name], p) for p in kernel.params}
    constants = {name: values[name] for name in types if types[name] == "constexpr"}
    key = (kernel.fn.__name__, tuple(types.values()), tuple(constants.items()))
    if key in SEEN:
        return
    SEEN[key] = None
    kinds = [
        constexpr(constants[name]).type if name in constants else str_to_ty(kind, None) for name, kind in types.items()
    ]
    try:
        PROGRAMS[-1].add(kernel, kinds, HOPPER.parse_options(options))
    except CompilationError as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        SEEN[key] = str(cause)
        PROGRAMS.append(Program())  # the other has half a kernel


def differentiate(output: Tensor, *inputs: Tensor) -> None:
    """Through the backward pass; what comes out has no meaning."""
    torch.autograd.grad(output.sum(), [x for x in inputs if x.requires_grad], allow_unused=True)


def maps_and_losses(dtype: torch.dtype) -> None:
    """Every kernel in both precisions; what an index selects does not depend on them."""
    learned = torch.tensor([[1.3], [1.7]], requires_grad=True)
    indices = (1.3, 1.5, 2.0, 2.5, learned) if dtype == torch.float32 else (1.5, 2.5, learned)
    for columns, alpha in itertools.product((5, 40_000), indices):
        x = torch.zeros(2, columns, dtype=dtype, requires_grad=True)
        mask = torch.ones(2, columns, dtype=torch.bool) if columns == 5 else None
        differentiate(contmax.entmax(x, alpha, mask=mask), x, learned)
        differentiate(losses.entmax_loss(x, torch.zeros(2, dtype=torch.int64), alpha), x, learned)
        soft = torch.full_like(x, 1 / columns, requires_grad=columns == 5, dtype=torch.float32)
        differentiate(losses.entmax_loss(x, soft, alpha, mask=mask, label_smoothing=0.1), x, soft, learned)
    hidden = torch.zeros(3, 16, dtype=dtype, requires_grad=True)
    weight = torch.zeros(5000, 16, dtype=dtype, requires_grad=True)
    differentiate(losses.linear_entmax_loss(hidden, weight, torch.zeros(3, dtype=torch.int64)), hidden, weight)


def attention(dtype: torch.dtype) -> None:
    learned = torch.tensor([1.2, 1.8], requires_grad=True)
    lengths = (150,) if dtype == torch.float32 else (150, 1100)  # few keys have no lists in half precision
    for keys in lengths:
        everything = {"mask": torch.ones(64, keys, dtype=torch.bool), "bias": torch.zeros(1, 64, keys)}
        everything["lengths"] = torch.tensor([70])
        cases: list[tuple[int, Any, dict[str, Any]]] = [(16, learned, everything), (20, 1.5, {"is_causal": True})]
        if keys == lengths[0]:
            cases += [(16, 2.0, everything), (16, 1.25, {"is_causal": True}), (16, 4 / 3, {"is_causal": True})]
        for channels, alpha, options in cases:
            query = torch.zeros(1, 2, 64, channels, dtype=dtype, requires_grad=True)
            key, value = (torch.zeros(1, 2, keys, channels, dtype=dtype, requires_grad=True) for _ in range(2))
            output = contmax.entmax_attention(query, key, value, alpha=alpha, **options)
            differentiate(output, query, key, value, learned)
    query = torch.zeros(1, 2, 64, 16, dtype=dtype, requires_grad=True)
    key, value = (torch.zeros(1, 1, 10_000, 16, dtype=dtype, requires_grad=True) for _ in range(2))
    differentiate(contmax.entmax_attention(query, key, value, enable_gqa=True, is_causal=True), query, key, value)


def continuous() -> None:
    """Float32 only, as the densities are."""
    line, plane = GaussianBasis.covering(32), MultivariateGaussianBasis.covering(6)
    for alpha in (1.25, 1.5):
        for basis, grid in ((line, None), (plane, (5, 6))):
            attend = nn.ContinuousAttention(basis, embed_dim=8, grid=grid, alpha=alpha)
            values = torch.randn(2, 30, 8, requires_grad=True)
            differentiate(attend(values)[0], values, *attend.parameters())
            loc = torch.zeros(2) if grid is None else torch.zeros(2, 2)
            scale = torch.ones(2) if grid is None else torch.eye(2).repeat(2, 1, 1)
            pair = loc.requires_grad_(), scale.requires_grad_()
            differentiate(attend(values, pair)[0], values, *pair)
            if alpha == 1.5:  # many queries a sequence: not by the way of the commonest calls
                differentiate(attend(values, (loc.unsqueeze(1), scale.unsqueeze(1)))[0], values, *pair)


def main() -> bool:
    """Is there a kernel that the compiler refuses?"""
    JITFunction.run = parsed
    JITFunction.parse = functools.cache(JITFunction.parse)  # helpers are in many kernels
    CodeGenerator.visit = visited
    _triton_private.may_be_cached = lambda kernel: False
    _backend.TRITON_DEVICES = {"cpu"}
    for dtype in (torch.float32, torch.bfloat16):
        for family in (maps_and_losses, attention):
            family(dtype)
    continuous()
    for (name, types, _), problem in SEEN.items():
        print(name if problem is None else f"REFUSED {name} {types}: {problem}")
    refused = any(SEEN.values())
    if not refused and not PROGRAMS[-1].module.verify():
        print("REFUSED: no sound program. What is wrong stands on stderr when this runs by itself.")
        refused = True
    return refused


if __name__ == "__main__" and main():
    sys.exit(1)

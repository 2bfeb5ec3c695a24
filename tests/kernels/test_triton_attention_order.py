"""In which order the programs of attention by triton's kernels start; the result is the same in any."""

import dataclasses

import pytest
import torch
import triton
import triton.language as tl

from attention_checks import F16, _as_if_long, assert_same, drawn  # noqa: F401 a fixture
from contmax.kernels.attention import _gpu_call as _attention_call
from contmax.kernels.attention._gpu_scores import block_and_head

pytestmark = pytest.mark.usefixtures("triton_takes_cpu_tensors", "_as_if_long")


@triton.jit
def _note(OUT, abreast):
    block, head = block_and_head(abreast)
    turn = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(OUT + turn * 2, block)
    tl.store(OUT + turn * 2 + 1, head)


def order(blocks, heads, abreast):
    """The block and the head of each program, in the order in which they start."""
    out = torch.full((blocks * heads, 2), -1)
    _note[(blocks, heads)](out, abreast)
    return [tuple(pair) for pair in out.tolist()]


def test_the_first_blocks_of_heads_side_by_side_come_before_the_second():
    assert order(2, 5, abreast=2) == [
        *[(0, 0), (0, 1), (1, 0), (1, 1)],
        *[(0, 2), (0, 3), (1, 2), (1, 3)],
        *[(0, 4), (1, 4)],
    ]


@pytest.mark.parametrize(("blocks", "heads"), [(1, 1), (1, 7), (5, 1), (4, 6), (3, 130)])
@pytest.mark.parametrize("abreast", [1, 2, 4, 64, 1000])
def test_every_block_of_every_head_has_one_program(blocks, heads, abreast):
    pairs = order(blocks, heads, abreast)
    assert sorted(pairs) == [(block, head) for block in range(blocks) for head in range(heads)]


def test_more_heads_than_go_side_by_side(monkeypatch):
    few = dataclasses.replace(_attention_call.TUNING, abreast=2, maxima_abreast=2)
    monkeypatch.setattr(_attention_call, "TUNING", few)
    query, key, value = drawn(heads=3, queries=66, keys=130, dtype=F16)
    query[:, 1] *= 0.01  # flat: dense
    # A program that took the α of another head would be seen.
    assert_same([query, key, value], torch.tensor([1.3, 1.5, 2.0]), is_causal=True)

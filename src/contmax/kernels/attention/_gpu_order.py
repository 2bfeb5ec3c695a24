"""In which order the programs of attention start.

With causal masks some blocks take much longer than others. Were the blocks of one head started after those of another,
the long ones of the last head would begin when all else is nearly done, and most of the chip would wait for them. So
the first blocks of many heads start before the second.
"""

import triton
import triton.language as tl


@triton.jit
def block_and_head(abreast):
    """The block and the head, int64, of a program in a grid of blocks and heads; so many heads go side by side."""
    blocks, heads = tl.num_programs(0), tl.num_programs(1)
    turn = tl.program_id(1) * blocks + tl.program_id(0)  # programs start in this order
    first = tl.program_id(1) // abreast * abreast
    beside = tl.minimum(heads - first, abreast)
    turn -= first * blocks
    return turn // beside, (first + turn % beside).to(tl.int64)

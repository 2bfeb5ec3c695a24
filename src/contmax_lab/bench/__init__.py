"""Benchmarks: ``python -m contmax_lab.bench [SUITE …] [--device cuda]`` prints tables and stores figures with targets.

A suite is a function that yields figures; it joins by one line in `SUITES`. All suites measure alike: ratios of
processor time from interleaved repeats on one thread (`interleaved`), resident memory of a fresh process
(`peak_extra_memory`), and a record of commit, machine and versions (`record`).

On a GPU the suites are those of `GPU_SUITES`, which need torch, with its triton, and numpy only (`translation` and
`vqa` also what the laboratory needs). There a pass is first compared with float64, and then timed by a `Clock`: replays
of CUDA graphs, and eager calls.
"""

from contmax_lab.bench._attention import ATTENTION, DENSITIES, GPU_ATTENTION, GPU_GROWTH
from contmax_lab.bench._attention import draw_growth as draw_growth
from contmax_lab.bench._decode import GPU_DECODE
from contmax_lab.bench._entmax_attention import ENTMAX_ATTENTION, GPU_ENTMAX_ATTENTION, GPU_ENTMAX_ATTENTION_PEERS
from contmax_lab.bench._figure import Contest as Contest
from contmax_lab.bench._figure import Figure as Figure
from contmax_lab.bench._figure import Suite as Suite
from contmax_lab.bench._figure import Work as Work
from contmax_lab.bench._figure import ratio as ratio
from contmax_lab.bench._figure import record as record
from contmax_lab.bench._figure import share_table as share_table
from contmax_lab.bench._figure import tables as tables
from contmax_lab.bench._gpt import GPU_GPT
from contmax_lab.bench._gpt import draw_gpt as draw_gpt
from contmax_lab.bench._gpu_maps import GPU_LOSSES, GPU_MAPS
from contmax_lab.bench._import import IMPORT
from contmax_lab.bench._maps import MAPS
from contmax_lab.bench._maps import Solved as Solved
from contmax_lab.bench._maps import errors as errors
from contmax_lab.bench._maps import exact_entmax as exact_entmax
from contmax_lab.bench._measuring import QUICK as QUICK
from contmax_lab.bench._measuring import THOROUGH as THOROUGH
from contmax_lab.bench._measuring import Clock as Clock
from contmax_lab.bench._measuring import Effort as Effort
from contmax_lab.bench._measuring import interleaved as interleaved
from contmax_lab.bench._measuring import one_thread as one_thread
from contmax_lab.bench._measuring import peak_extra_memory as peak_extra_memory
from contmax_lab.bench._numerics import NUMERICS
from contmax_lab.bench._training import GPU_TRANSLATION, GPU_VQA, TRANSLATION
from contmax_lab.bench._training import VQA as VQA

SUITES: list[Suite] = [MAPS, DENSITIES, ATTENTION, TRANSLATION, VQA, ENTMAX_ATTENTION, NUMERICS, IMPORT]

GPU_SUITES: list[Suite] = [
    GPU_MAPS,
    GPU_LOSSES,
    GPU_ATTENTION,
    GPU_ENTMAX_ATTENTION,
    GPU_ENTMAX_ATTENTION_PEERS,
    GPU_DECODE,
    GPU_GPT,
    GPU_GROWTH,
    GPU_TRANSLATION,
    GPU_VQA,
]

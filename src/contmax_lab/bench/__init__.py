"""Benchmarks: ``python -m contmax_lab.bench [SUITE …] [--device cuda]`` prints tables and stores figures with targets.

A suite is one file that yields figures; it joins by one line in `SUITES`. How figures come about is shared: ratios of
processor time from interleaved repeats on one thread (`interleaved`), resident memory of a fresh process
(`peak_extra_memory`), and a record of commit, machine and versions (`record`).

On a GPU the suites are those of `GPU_SUITES`, which need torch, with its triton, and numpy only (`translation` also
what the laboratory needs). There a pass is first compared with float64, and then timed by a `Clock`: replays of CUDA
graphs, and eager calls.
"""

from contmax_lab.bench._accuracy import Solved as Solved
from contmax_lab.bench._accuracy import errors as errors
from contmax_lab.bench._accuracy import exact_entmax as exact_entmax
from contmax_lab.bench._attention import ATTENTION as ATTENTION
from contmax_lab.bench._densities import DENSITIES as DENSITIES
from contmax_lab.bench._entmax_attention import ENTMAX_ATTENTION as ENTMAX_ATTENTION
from contmax_lab.bench._figure import Figure as Figure
from contmax_lab.bench._gpu_attention import GPU_ATTENTION as GPU_ATTENTION
from contmax_lab.bench._gpu_entmax_attention import GPU_ENTMAX_ATTENTION as GPU_ENTMAX_ATTENTION
from contmax_lab.bench._gpu_entmax_attention import GPU_ENTMAX_ATTENTION_PEERS as GPU_ENTMAX_ATTENTION_PEERS
from contmax_lab.bench._gpu_entmax_attention import entmax_attention_figures as entmax_attention_figures
from contmax_lab.bench._gpu_growth import GPU_GROWTH as GPU_GROWTH
from contmax_lab.bench._gpu_growth import draw_growth as draw_growth
from contmax_lab.bench._gpu_losses import GPU_LOSSES as GPU_LOSSES
from contmax_lab.bench._gpu_maps import GPU_MAPS as GPU_MAPS
from contmax_lab.bench._gpu_timing import Clock as Clock
from contmax_lab.bench._gpu_work import Contest as Contest
from contmax_lab.bench._gpu_work import Work as Work
from contmax_lab.bench._gpu_work import share_table as share_table
from contmax_lab.bench._import import IMPORT as IMPORT
from contmax_lab.bench._maps import MAPS as MAPS
from contmax_lab.bench._memory import peak_extra_memory as peak_extra_memory
from contmax_lab.bench._numerics import NUMERICS as NUMERICS
from contmax_lab.bench._record import record as record
from contmax_lab.bench._suite import Suite as Suite
from contmax_lab.bench._table import tables as tables
from contmax_lab.bench._timing import QUICK as QUICK
from contmax_lab.bench._timing import THOROUGH as THOROUGH
from contmax_lab.bench._timing import Effort as Effort
from contmax_lab.bench._timing import Ratio as Ratio
from contmax_lab.bench._timing import interleaved as interleaved
from contmax_lab.bench._timing import one_thread as one_thread
from contmax_lab.bench._translation import GPU_TRANSLATION as GPU_TRANSLATION
from contmax_lab.bench._translation import TRANSLATION as TRANSLATION
from contmax_lab.bench._vqa import GPU_VQA as GPU_VQA
from contmax_lab.bench._vqa import VQA as VQA

SUITES: list[Suite] = [
    MAPS,
    DENSITIES,
    ATTENTION,
    TRANSLATION,
    VQA,
    ENTMAX_ATTENTION,
    NUMERICS,
    IMPORT,
]

GPU_SUITES: list[Suite] = [
    GPU_MAPS,
    GPU_LOSSES,
    GPU_ATTENTION,
    GPU_ENTMAX_ATTENTION,
    GPU_ENTMAX_ATTENTION_PEERS,
    GPU_GROWTH,
    GPU_TRANSLATION,
    GPU_VQA,
]

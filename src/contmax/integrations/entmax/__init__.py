"""Drop-in replacement for the `entmax` package, version 1.3: the same names, signatures and submodules.

Change ``import entmax`` to ``from contmax.integrations import entmax``, or ``from entmax.losses import …`` to ``from
contmax.integrations.entmax.losses import …``, and nothing else. Numbers agree to rounding. The differences are cases
that used to fail: second derivatives, slices of −inf, float16 and bfloat16, large scores, α at and near 1, losses with
−inf scores, ignored labels, soft targets and a learned α, `vmap`, forward mode and `torch.compile(fullgraph=True)`.

Arguments that steer an algorithm (`k`, `n_iter`, `ensure_sum_one`) are accepted and have no effect: every result is
exact to the rounding of its dtype.
"""

from contmax.integrations.entmax.activations import Entmax15 as Entmax15
from contmax.integrations.entmax.activations import Sparsemax as Sparsemax
from contmax.integrations.entmax.activations import entmax15 as entmax15
from contmax.integrations.entmax.activations import sparsemax as sparsemax
from contmax.integrations.entmax.losses import Entmax15Loss as Entmax15Loss
from contmax.integrations.entmax.losses import EntmaxBisectLoss as EntmaxBisectLoss
from contmax.integrations.entmax.losses import NormmaxBisectLoss as NormmaxBisectLoss
from contmax.integrations.entmax.losses import SparsemaxBisectLoss as SparsemaxBisectLoss
from contmax.integrations.entmax.losses import SparsemaxLoss as SparsemaxLoss
from contmax.integrations.entmax.losses import entmax15_loss as entmax15_loss
from contmax.integrations.entmax.losses import entmax_bisect_loss as entmax_bisect_loss
from contmax.integrations.entmax.losses import normmax_bisect_loss as normmax_bisect_loss
from contmax.integrations.entmax.losses import sparsemax_bisect_loss as sparsemax_bisect_loss
from contmax.integrations.entmax.losses import sparsemax_loss as sparsemax_loss
from contmax.integrations.entmax.root_finding import BudgetBisect as BudgetBisect
from contmax.integrations.entmax.root_finding import EntmaxBisect as EntmaxBisect
from contmax.integrations.entmax.root_finding import NormmaxBisect as NormmaxBisect
from contmax.integrations.entmax.root_finding import SparsemaxBisect as SparsemaxBisect
from contmax.integrations.entmax.root_finding import budget_bisect as budget_bisect
from contmax.integrations.entmax.root_finding import entmax_bisect as entmax_bisect
from contmax.integrations.entmax.root_finding import normmax_bisect as normmax_bisect
from contmax.integrations.entmax.root_finding import sparsemax_bisect as sparsemax_bisect

# The version of `entmax` that has this interface; some projects check the version.
__version__ = "1.3"

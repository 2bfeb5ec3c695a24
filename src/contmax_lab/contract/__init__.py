"""What a task is. All that a task imports from the laboratory, beside helpers that know nothing of training.

The helpers are `data`, `files`, `drawing`, `attention`, `packages`, `provenance` and `errors`. Nothing heavy is
imported here: neither torch nor matplotlib.
"""

from contmax_lab.contract._attention_table import attention_table as attention_table
from contmax_lab.contract._evaluation import Batch as Batch
from contmax_lab.contract._evaluation import Batches as Batches
from contmax_lab.contract._figure import Figure as Figure
from contmax_lab.contract._figure import Section as Section
from contmax_lab.contract._look import Look as Look
from contmax_lab.contract._parameters import ParameterGroup as ParameterGroup
from contmax_lab.contract._prediction import Prediction as Prediction
from contmax_lab.contract._table import Cell as Cell
from contmax_lab.contract._table import Metric as Metric
from contmax_lab.contract._table import Repetition as Repetition
from contmax_lab.contract._table import Row as Row
from contmax_lab.contract._table import Start as Start
from contmax_lab.contract._table import Table as Table
from contmax_lab.contract._task import Recipe as Recipe
from contmax_lab.contract._task import Splits as Splits
from contmax_lab.contract._task import Task as Task
from contmax_lab.contract._task import TrainedRun as TrainedRun
from contmax_lab.contract._training import TrainingConfig as TrainingConfig

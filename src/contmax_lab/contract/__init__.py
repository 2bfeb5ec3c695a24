"""What a task is. All that a task imports from the laboratory, beside helpers that know nothing of training.

The helpers are `data`, `files`, `drawing`, `attention`, `packages`, `provenance` and `errors`. Nothing heavy is
imported here: neither torch nor matplotlib.
"""

from contmax_lab.contract._shown import Figure as Figure
from contmax_lab.contract._shown import FileAnswer as FileAnswer
from contmax_lab.contract._shown import Look as Look
from contmax_lab.contract._shown import Prediction as Prediction
from contmax_lab.contract._shown import Section as Section
from contmax_lab.contract._table import Cell as Cell
from contmax_lab.contract._table import Experiment as Experiment
from contmax_lab.contract._table import Metric as Metric
from contmax_lab.contract._table import Repetition as Repetition
from contmax_lab.contract._table import Row as Row
from contmax_lab.contract._table import Start as Start
from contmax_lab.contract._table import Table as Table
from contmax_lab.contract._table import attention_table as attention_table
from contmax_lab.contract._table import seeds as seeds
from contmax_lab.contract._task import Batch as Batch
from contmax_lab.contract._task import Batches as Batches
from contmax_lab.contract._task import ParameterGroup as ParameterGroup
from contmax_lab.contract._task import Recipe as Recipe
from contmax_lab.contract._task import Settings as Settings
from contmax_lab.contract._task import Splits as Splits
from contmax_lab.contract._task import Task as Task
from contmax_lab.contract._task import TrainedRun as TrainedRun
from contmax_lab.contract._task import seedless as seedless
from contmax_lab.contract._training import TrainingConfig as TrainingConfig

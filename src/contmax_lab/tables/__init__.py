"""Tables of results: which trainings make them, and how their figures become one file and one text."""

from contmax_lab.tables._attention import attention_table as attention_table
from contmax_lab.tables._outcome import as_lines as as_lines
from contmax_lab.tables._outcome import as_text as as_text
from contmax_lab.tables._outcome import summary as summary
from contmax_lab.tables._reproduce import Reproduction as Reproduction
from contmax_lab.tables._reproduce import reproduce as reproduce
from contmax_lab.tables._table import Cell as Cell
from contmax_lab.tables._table import Metric as Metric
from contmax_lab.tables._table import Row as Row
from contmax_lab.tables._table import Start as Start
from contmax_lab.tables._table import Table as Table
from contmax_lab.tables._table import Variant as Variant

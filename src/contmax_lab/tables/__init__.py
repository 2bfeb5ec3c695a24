"""Tables of results: many trainings become one file and one text. What a table is, `contmax_lab.contract` says."""

from contmax_lab.tables._outcome import as_lines as as_lines
from contmax_lab.tables._outcome import as_text as as_text
from contmax_lab.tables._outcome import distances_from_paper as distances_from_paper
from contmax_lab.tables._outcome import findings as findings
from contmax_lab.tables._outcome import paired_differences as paired_differences
from contmax_lab.tables._outcome import student_quantile as student_quantile
from contmax_lab.tables._outcome import summary as summary
from contmax_lab.tables._reproduce import Reproduction as Reproduction
from contmax_lab.tables._reproduce import cell_recipe as cell_recipe
from contmax_lab.tables._reproduce import reproduce as reproduce
from contmax_lab.tables._results import run_experiment as run_experiment
from contmax_lab.tables._results import summarised as summarised
from contmax_lab.tables._results import summarised_again as summarised_again
from contmax_lab.tables._results import write_results as write_results

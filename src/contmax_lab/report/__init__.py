"""Reports: figures and tables in one HTML file that needs nothing else."""

from contmax_lab.report._page import write_page as write_page
from contmax_lab.report._runs import distinct_labels as distinct_labels
from contmax_lab.report._runs import learning_curves as learning_curves
from contmax_lab.report._runs import sections as sections

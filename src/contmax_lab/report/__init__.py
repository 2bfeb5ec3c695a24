"""Reports: figures and tables in one HTML file that needs nothing else."""

from contmax_lab.report._curves import learning_curves as learning_curves
from contmax_lab.report._figure import Figure as Figure
from contmax_lab.report._figure import new_axes as new_axes
from contmax_lab.report._page import Section as Section
from contmax_lab.report._page import write_page as write_page
from contmax_lab.report._runs import distinct_labels as distinct_labels
from contmax_lab.report._runs import sections as sections
from contmax_lab.report._theme import DARK as DARK
from contmax_lab.report._theme import LIGHT as LIGHT
from contmax_lab.report._theme import Theme as Theme
from contmax_lab.report._theme import drawn_in as drawn_in

"""Search over a recipe with optuna: a trial is a training, or several, that never see the test examples."""

from contmax_lab.search._search import Search as Search
from contmax_lab.search._search import search as search
from contmax_lab.search._search import trial_folder as trial_folder

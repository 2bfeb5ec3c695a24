"""Recipes: everything that decides a training, as typed data; a YAML file, with dotted overrides on top."""

from contmax_lab.recipes._parsing import RecipeSource as RecipeSource
from contmax_lab.recipes._parsing import Settings as Settings
from contmax_lab.recipes._parsing import as_yaml as as_yaml
from contmax_lab.recipes._reading import flattened as flattened
from contmax_lab.recipes._reading import read_recipe as read_recipe
from contmax_lab.recipes._reading import task_recipe as task_recipe
from contmax_lab.recipes._reading import variant_names as variant_names
from contmax_lab.recipes._reading import with_variant as with_variant

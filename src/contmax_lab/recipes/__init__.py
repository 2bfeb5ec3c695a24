"""Recipes: everything that decides a training, as typed data; a YAML file, with dotted overrides on top."""

from contmax_lab.recipes._parsing import as_yaml as as_yaml
from contmax_lab.recipes._parsing import flattened as flattened
from contmax_lab.recipes._parsing import load_recipe as load_recipe
from contmax_lab.recipes._parsing import recipe_help as recipe_help
from contmax_lab.recipes._recipe import Recipe as Recipe
from contmax_lab.recipes._recipe import TrainingConfig as TrainingConfig
from contmax_lab.recipes._shipped import find_recipe as find_recipe
from contmax_lab.recipes._shipped import shipped_recipes as shipped_recipes

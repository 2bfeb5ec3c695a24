"""What there is: tasks, their recipes and tables. Nothing else knows which tasks exist."""

from contmax_lab.registry._experiments import experiments as experiments
from contmax_lab.registry._experiments import find_experiment as find_experiment
from contmax_lab.registry._experiments import table_named as table_named
from contmax_lab.registry._recipes import find_recipe as find_recipe
from contmax_lab.registry._recipes import load_recipe as load_recipe
from contmax_lab.registry._recipes import recipe_help as recipe_help
from contmax_lab.registry._recipes import shipped_recipes as shipped_recipes
from contmax_lab.registry._tasks import find_table as find_table
from contmax_lab.registry._tasks import find_task as find_task
from contmax_lab.registry._tasks import installed_task as installed_task
from contmax_lab.registry._tasks import open_trained as open_trained
from contmax_lab.registry._tasks import settings_of as settings_of
from contmax_lab.registry._tasks import shipped_tasks as shipped_tasks
from contmax_lab.registry._tasks import task_names as task_names
from contmax_lab.registry._tasks import task_of_model as task_of_model
from contmax_lab.registry._tasks import task_of_run as task_of_run
from contmax_lab.registry._tasks import task_reference as task_reference

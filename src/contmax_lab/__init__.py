"""The laboratory: from data to tables and pictures, on the public API of contmax. The command is ``contmax``.

The way of a training, from left to right::

    recipe (YAML) ──recipes──▶ Recipe ──Task──▶ Splits, model ──training──▶ run folder ──tables, report──▶ JSON, HTML

Layers from top to bottom; each imports only what is below it, which import-linter checks:

==================  ====================================================================================================
``cli``             the subcommands of ``contmax``
``explorer``        `serve`: a local page with four rooms; `export`: those that need no server, as files
``demo``            every table that needs no data, in one report
``search``          optuna over a recipe
``tables``          `reproduce` trains what is missing of a `Table`: rows (variants of a recipe) × repetitions (seeds)
                    `run_experiment`: a table whose cells are trained by code of its own
``report``          `sections` of runs, `write_page`: one HTML file with everything inside, light and dark
``workers``         trainings side by side: processes of this machine, or a Ray cluster
``registry``        what there is: `find_task`, `load_recipe`, `open_trained`; nothing else knows which tasks exist
``tasks``           one folder each; they know nothing of each other, and import `contract` and the helpers below it
``training``        `train`: the loop; `evaluate`, and `evaluate_trained` for a run that is done
``runs``            `Run`: the folder; checkpoints, metrics, results. `load_trained` loads a done one
``recipes``         YAML with variants, dotted overrides → `Recipe`
``labelled``        what the tasks share that learn classes or numbers from examples of your own
``contract``        what a task is: `Task`, `Splits`, `Recipe`, `TrainedRun`; `Table`, `Figure`, `Section` described
``drawing``         one look for all pictures; what several tasks draw alike
``files``           files that are whole or not there at all; checkpoints
``data``            reading other people's files with complaints that name the line; data that comes inside packages
``attention``       `Attention`: the kinds that tasks compare, with one face
``recurrent``       `LSTM`: trains in bfloat16 on every processor; `Bidirectional`: padding changes nothing
``recorded``        `RecordedStep`, `RepeatedParts`: kernels of a GPU that are launched together
``provenance``      commit, machine, versions
``launchers``       what a launcher has started, and what it should have
``settings``        settings that several tasks share; settings checked against their types
``packages``        `require`: optional packages, imported where they are used
``errors``          `LabError`: what the user can mend, shown as one line
==================  ====================================================================================================

``bench`` (benchmarks of the library) and ``publish`` (the tables of README and docs) stand alone: nothing imports them.

**To add a task**, read docs/write-your-own-task.md; outside the package, nothing else is needed. One that comes with
the laboratory is a folder ``tasks/<name>/`` and a line in ``registry.py``:

* ``__init__.py``: two frozen dataclasses, the sections ``data`` and ``model`` of a recipe, named by ``SETTINGS``; the
  ``Args`` of their docstrings become the help of the command line. It does not import torch;
* ``_data.py``: the loader that makes `Splits`; examples with a method ``batch`` need no `Task.batch`;
* ``_model.py``: the ``nn.Module``;
* ``_task.py``: your subclass of `Task`, whose docstrings say what its functions promise, and ``TASK``, an instance;
* ``recipe.yaml``: keys ``task``, ``data``, ``model``, ``training``, ``seed``, ``search`` (dotted key → list, or
  {low, high, log}), and ``variants`` by name, each of which changes some keys. A test trains each for one step;
* ``_table.py``, if the task reproduces a table: a `Table`, named by the attribute ``reproduces`` of the task; a short
  one stands in ``_task.py``. ``contmax reproduce <table>``
  trains its cells side by side and writes ``results/<table>.json``. With ``in_demo=True`` it is part of the demo.

``tasks/intervals`` is a small complete example.

**What the loop promises.** On a CPU every bit of a result is decided by the recipe: the order of examples is a function
of (seed, epoch), and torch's generator is seeded before every step from (seed, step, process), so draw random numbers
from it and from nothing else, and keep no state in a task. A run that was killed at any moment goes on to the same bits
with ``--resume``, and processes that make batches ahead of time (``training.workers``) change none of them.
``batch_size`` counts examples over all processes, losses are averaged over the global batch by their weights, and an
evaluation counts every example exactly once, on any number of processes. The test examples are measured by ``train
--test``, ``evaluate --test`` and ``reproduce`` only, with the weights that were best on validation.
"""

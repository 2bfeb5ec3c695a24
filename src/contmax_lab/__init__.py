"""The laboratory: from data to tables and pictures, on the public API of contmax. The command is ``contmax``.

The way of a training, from left to right::

    recipe (YAML) ──recipes──▶ Recipe ──tasks──▶ Splits, model ──training──▶ run folder ──tables, report──▶ JSON, HTML

==================  ====================================================================================================
``errors``          `LabError`: what the user can mend, shown as one line
``packages``        `require`: optional packages, imported where they are used
``provenance``      commit, machine, versions
``data``            reading other people's files with complaints that name the line; unpacking; splits by seed
``tasks``           `Task`, `Splits`; every folder below it is a task
``attention``       `Attention`: the kinds that tasks compare, with one face; `attended_share`: how much they look at
``recipes``         `Recipe` = task + data + model + training + seed; YAML, dotted overrides
``runs``            `Run`: the folder; atomic files, checkpoints, metrics, results. `open_trained` loads a done one
``training``        `train`: the loop; `evaluate`, and `evaluate_trained` for a run that is done
``tables``          `Table` = rows (recipes) × variants (seeds, splits); `reproduce` trains what is missing
``report``          `Figure`, `Theme`, `Section`, `write_page`: one HTML file with everything inside, light and dark
``search``          optuna over a recipe
``pretrained``      a small trained model that travels with the package, and how to make one
``demo``            every table that needs no data, in one report
``cli``             one file per subcommand
``bench``           benchmarks of the library, apart from all this
==================  ====================================================================================================

**To add a task**, make a folder ``tasks/<name>/``; it is found by its name, no list needs a new line:

* ``__init__.py`` exports ``TASK``, an instance of your subclass of `Task`;
* ``_data.py``: a frozen dataclass, the section ``data`` of a recipe (its docstring's ``Args`` become the help of the
  command line), and the loader that makes `Splits`. Data from outside comes by a field ``path``; read it with
  `contmax_lab.data` and raise `LabError` with file and line;
* ``_model.py``: a frozen dataclass, the section ``model``, and the ``nn.Module``. Its ``forward(batch)`` takes the
  mapping of tensors that `Task.batch` makes and returns anything that `Task.losses` and `Task.measures` understand;
* ``_task.py``: the `Task`: `load`, `build`, `batch`, `losses` (B,), `measures` name → (B, …). A metric is the mean of a
  measure over all examples; one that is not a mean is made in `summarise`. `lengths` switches batches of similar length
  on. `figures` draws trained runs for the report, best by `Figure.drawn`, which calls the drawing function once for
  light and once for dark screens; `showcase` adds sections to the demo that need no training;
* ``recipes/*.yaml``: named ``<task>/<file>`` everywhere; keys ``task``, ``data``, ``model``, ``training``, ``seed`` and
  ``search`` (dotted key → list, or {low, high, log}). A test trains each for one step;
* ``_table.py``, if the task reproduces a table: a `Table`, returned by `Task.tables`. ``contmax reproduce <table>``
  trains its cells side by side and writes ``results/<table>.json``. With ``in_demo=True`` it is part of the demo.

``tasks/intervals`` is a small complete example.

**What the loop promises.** On a CPU every bit of a result is decided by the recipe: the order of examples is a function
of (seed, epoch), and torch's generator is seeded before every step from (seed, step, process), so draw random numbers
from it and from nothing else, and keep no state in a task. A run that was killed at any moment goes on to the same bits
with ``--resume``. ``batch_size`` counts examples over all processes, losses are averaged over the global batch, and an
evaluation counts every example exactly once, on any number of processes. The test examples are measured once, at the
end, with the weights that were best on validation.
"""

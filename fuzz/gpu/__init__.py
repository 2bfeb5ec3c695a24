"""The campaign of `fuzz` on a GPU: ``make fuzz-gpu MINUTES=10``, or ``python -m fuzz.gpu``.

A test that waits for a kernel cannot report that the kernel hangs. Here cases run in processes that are watched:

* `__main__` starts the campaign, prints progress and a table, and writes counts and findings to a JSON file.
* `_campaign` decides which case comes next, for several processes side by side; `_targets` lists all targets.
* `_watchdog` gives a process one case at a time. A process that is silent for 25 s is killed, the case is named with
  its circumstances, and the next case gets a new process. Compiling a kernel may take longer: the process says when.
* `_child` is that process. A case that fails says why in one line; one that finds no memory left is skipped.

A case is a target and a seed (`_case`): all circumstances follow from both, so that a case can be run again alone::

    python -m fuzz.gpu --only losses.hard --seed 123 --cases 1 --side 1

Targets are functions of a `Case`: they draw what they need, count rows, and raise `WrongResultError`. There are `maps`,
`losses`, `linear_loss`, `attention`, `continuous` (gates, the line, the plane, contexts), `launches` (streams, threads,
graphs, shapes in turns), and `hunts`, which take as many rows as the device can. `_scores` makes the inputs,
`_references` says in float64 what is right, and `_compare` how close is close enough. One row in 16 is compared, one in
64 by hunts, and all rows where that costs little.

To add a target, write such a function and name it in `_targets`. ``--device cpu`` runs the same code with small sizes.
"""

"""Runs: a training is a folder, and a folder is all there is of it.

``config.yaml`` (resolved recipe), ``provenance.json`` (commit, machine, versions), ``metrics.jsonl`` (one line per
evaluation), ``checkpoints/`` (while it trains), ``model.safetensors`` (best weights) and ``results.json`` (when it is
done). Whole files appear atomically, and nothing in them is ever unpickled.
"""

from contmax_lab.runs._atomic import make_folder as make_folder
from contmax_lab.runs._atomic import write_atomically as write_atomically
from contmax_lab.runs._atomic import write_json as write_json
from contmax_lab.runs._checkpoint import Checkpoint as Checkpoint
from contmax_lab.runs._checkpoint import read_checkpoint as read_checkpoint
from contmax_lab.runs._checkpoint import write_checkpoint as write_checkpoint
from contmax_lab.runs._folder import Run as Run
from contmax_lab.runs._trained import TrainedRun as TrainedRun
from contmax_lab.runs._trained import open_trained as open_trained

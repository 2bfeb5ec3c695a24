"""Runs: a training is a folder, and a folder is all there is of it.

``config.yaml`` (resolved recipe), ``provenance.json`` (commit, machine, versions), ``metrics.jsonl`` (one line per
evaluation; ``metrics.csv`` says the same), ``checkpoints/`` (while it trains), ``model.safetensors`` (best weights) and
``results.json`` (when it is done). Whole files appear atomically, and nothing in them is ever unpickled.
"""

from contmax_lab.runs._folder import Run as Run
from contmax_lab.runs._trained import load_trained as load_trained

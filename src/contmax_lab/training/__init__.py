"""Training: a plain loop on accelerate; every step is a function of the recipe and the step's number."""

from contmax_lab.training._batches import epoch_batches as epoch_batches
from contmax_lab.training._batches import share as share
from contmax_lab.training._batches import token_batches as token_batches
from contmax_lab.training._ensemble import train_together as train_together
from contmax_lab.training._evaluation import evaluate as evaluate
from contmax_lab.training._evaluation import evaluate_trained as evaluate_trained
from contmax_lab.training._loop import extension_note as extension_note
from contmax_lab.training._loop import train as train
from contmax_lab.training._optimizer import Schedule as Schedule
from contmax_lab.training._optimizer import learning_rate as learning_rate
from contmax_lab.training._processes import StopRequest as StopRequest
from contmax_lab.training._processes import seed_for as seed_for
from contmax_lab.training._processes import stop_requests as stop_requests

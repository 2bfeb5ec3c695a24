"""Measuring a run that is done."""

from torch import nn

from contmax_lab.contract import TrainedRun
from contmax_lab.errors import LabError
from contmax_lab.training._evaluation import evaluate
from contmax_lab.training._processes import accelerator_for


def evaluate_trained(trained: TrainedRun, part: str, model: nn.Module | None = None) -> dict[str, float]:
    """The metrics of a trained model, with the device, precision and batches of its recipe.

    Args:
        trained: the run; its model moves to the device.
        part: of its data: ``train``, ``valid`` or ``test``.
        model: measured instead of that of the run.

    Returns:
        Name → value, the same on every process.

    Raises:
        LabError: if that part has no examples.
    """
    training, splits = trained.recipe.training, trained.splits
    if not len(getattr(splits, part)):
        raise LabError(
            f"the data of the run has no {part} examples; if you have some, name them, e.g. --data.{part} FILE"
        )
    accelerator = accelerator_for(training)
    prepared = accelerator.prepare_model(model or trained.model, evaluation_mode=True)
    split, batch_size = getattr(splits, part), training.evaluation_batch_size or training.batch_size
    return evaluate(prepared, trained.task, split, splits.info, batch_size, accelerator)

"""Measuring a run that is done."""

from contmax_lab.runs import TrainedRun
from contmax_lab.training._evaluation import evaluate
from contmax_lab.training._loop import accelerator_for


def evaluate_trained(trained: TrainedRun, part: str) -> dict[str, float]:
    """The metrics of a trained model, with the device, precision and batches of its recipe.

    Args:
        trained: the run; its model moves to the device.
        part: of its data: ``train``, ``valid`` or ``test``.

    Returns:
        Name → value, the same on every process.
    """
    accelerator = accelerator_for(trained.recipe.training)
    model = accelerator.prepare_model(trained.model, evaluation_mode=True)
    split = getattr(trained.splits, part)
    return evaluate(model, trained.task, split, trained.recipe.training.batch_size, accelerator)

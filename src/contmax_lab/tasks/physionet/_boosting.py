"""Gradient-boosted trees, grown by scikit-learn and stored as tensors, so that predicting needs torch alone."""

from typing import Any

import torch
from torch import Tensor, nn

from contmax_lab.contract import Batch
from contmax_lab.packages import require
from contmax_lab.tasks.physionet import PhysionetModel

# The number of trees that are grown. Trees after the one with the least validation loss are set to 0.
TREES = 300
_REGULARISATION = 5.0
_LEAST_IN_LEAF = 20


class Boosting(nn.Module):
    """Boosted trees on the summary of a stay.

    Args:
        model: configuration of the trees.

    Example:
        >>> Boosting(PhysionetModel(kind="boosting"))({"summary": torch.zeros(3, 120)})
        tensor([0., 0., 0.], grad_fn=<AddBackward0>)
    """

    feature: Tensor
    threshold: Tensor
    branches: Tensor
    value: Tensor

    def __init__(self, model: PhysionetModel) -> None:
        super().__init__()
        self.model = model
        nodes = 2 * model.leaves - 1
        self.register_buffer("feature", torch.zeros(TREES, nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(TREES, nodes))
        # Both branches of a leaf lead to the leaf, so that a walk from the root may take any number of steps.
        self.register_buffer("branches", torch.zeros(TREES, nodes, 2, dtype=torch.int64))
        self.register_buffer("value", torch.zeros(TREES, nodes))
        # This is the only number that an optimizer could change.
        self.offset = nn.Parameter(torch.zeros(()))

    def fit(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], seed: int) -> None:
        """Grow trees on the training stays, and use the number of trees with the least loss on the validation stays.

        Args:
            train, valid: summaries (B, S) and deaths (B,).
            seed: seed of scikit-learn's random choices.
        """
        ensemble = require("sklearn.ensemble", "Gradient boosting")
        grower = ensemble.HistGradientBoostingClassifier(
            learning_rate=self.model.rate,
            max_leaf_nodes=self.model.leaves,
            max_iter=TREES,
            l2_regularization=_REGULARISATION,
            min_samples_leaf=_LEAST_IN_LEAF,
            early_stopping=False,
            random_state=seed,
        ).fit(train[0].double().numpy(), train[1].numpy())
        self._take(grower)
        with torch.no_grad():
            logits = self._of_trees(valid[0]).cumsum(-1) + self.offset
            losses = nn.functional.softplus(logits) - valid[1].unsqueeze(-1) * logits
            self.value[int(losses.mean(0).argmin()) + 1 :] = 0

    def _take(self, grower: Any) -> None:
        """Copy the trees of scikit-learn."""
        for tree, (predictor,) in enumerate(grower._predictors):
            nodes = predictor.nodes
            count, is_leaf = len(nodes), torch.from_numpy(nodes["is_leaf"].astype(bool))
            own = torch.arange(count)
            for side, name in enumerate(("left", "right")):
                child = torch.from_numpy(nodes[name].astype("int64"))
                self.branches[tree, :count, side] = torch.where(is_leaf, own, child)
            self.feature[tree, :count] = torch.from_numpy(nodes["feature_idx"].astype("int64"))
            self.threshold[tree, :count] = torch.from_numpy(nodes["num_threshold"].astype("float32"))
            self.value[tree, :count] = torch.from_numpy(nodes["value"].astype("float32"))
        with torch.no_grad():
            self.offset.copy_(torch.tensor(float(grower._baseline_prediction.item())))

    def _of_trees(self, summary: Tensor) -> Tensor:
        """The value of each tree for each stay, (B, trees)."""
        tree = torch.arange(TREES, device=summary.device)
        node = torch.zeros(len(summary), TREES, dtype=torch.int64, device=summary.device)
        for _ in range(self.model.leaves - 1):
            right = summary.gather(1, self.feature[tree, node]) > self.threshold[tree, node]
            node = self.branches[tree, node, right.long()]
        return self.value[tree, node]

    def forward(self, batch: Batch) -> Tensor:
        """Logits of death, (B,)."""
        return self._of_trees(batch["summary"]).sum(-1) + self.offset

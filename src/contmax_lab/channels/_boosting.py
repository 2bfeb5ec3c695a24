"""Gradient-boosted trees, grown by scikit-learn and stored as tensors, so that predicting needs torch alone."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contmax_lab.channels._observations import Sizes
from contmax_lab.contract import Batch
from contmax_lab.packages import require
from contmax_lab.settings import ChannelsModel

# The number of trees that are grown, per output. Trees after those with the least validation loss are set to 0.
TREES = 300
_REGULARISATION = 5.0


class Boosting(nn.Module):
    """Boosted trees on the summary of a series.

    Args:
        model: configuration of the trees.
        sizes: of the data.

    Example:
        >>> Boosting(ChannelsModel(), Sizes(channels=37, numbers=120, static=9))({"summary": torch.zeros(3, 120)})
        tensor([0., 0., 0.], grad_fn=<AddBackward0>)
    """

    feature: Tensor
    threshold: Tensor
    branches: Tensor
    value: Tensor

    def __init__(self, model: ChannelsModel, sizes: Sizes) -> None:
        super().__init__()
        self.model, self.outputs = model, sizes.outputs
        trees, nodes = TREES * sizes.outputs, 2 * model.leaves - 1
        self.register_buffer("feature", torch.zeros(trees, nodes, dtype=torch.int64))
        self.register_buffer("threshold", torch.zeros(trees, nodes))
        # Both branches of a leaf lead to the leaf, so that a walk from the root may take any number of steps.
        self.register_buffer("branches", torch.zeros(trees, nodes, 2, dtype=torch.int64))
        self.register_buffer("value", torch.zeros(trees, nodes))
        # Nothing else could be changed by an optimizer.
        self.offset = nn.Parameter(torch.zeros(() if sizes.outputs == 1 else sizes.outputs))

    def fit(self, train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], seed: int) -> None:
        """Grow trees on the training series, and use the number of trees with the least loss on the validation series.

        Args:
            train, valid: summaries (B, S) and classes (B,).
            seed: seed of scikit-learn's random choices.
        """
        ensemble = require("sklearn.ensemble", "Gradient boosting")
        grower = ensemble.HistGradientBoostingClassifier(
            learning_rate=self.model.rate,
            max_leaf_nodes=self.model.leaves,
            max_iter=TREES,
            l2_regularization=_REGULARISATION,
            min_samples_leaf=self.model.least_in_leaf,
            early_stopping=False,
            random_state=seed,
        ).fit(train[0].double().numpy(), train[1].numpy())
        self._take(grower)
        with torch.no_grad():
            logits = self._of_trees(valid[0]).cumsum(1) + self.offset
            if self.outputs == 1:
                # Two classes: the first has the score 0.
                logits = torch.cat([torch.zeros_like(logits), logits], -1)
            losses = F.cross_entropy(
                logits.movedim(1, -1), valid[1].long().unsqueeze(-1).expand(-1, TREES), reduction="none"
            )
            self.value[(int(losses.mean(0).argmin()) + 1) * self.outputs :] = 0

    def _take(self, grower: Any) -> None:
        """Copy the trees of scikit-learn."""
        for tree, predictor in enumerate(own for of_step in grower._predictors for own in of_step):
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
            self.offset.copy_(torch.from_numpy(grower._baseline_prediction).view_as(self.offset))

    def _of_trees(self, summary: Tensor) -> Tensor:
        """The value of each tree for each series, (B, trees, outputs)."""
        tree = torch.arange(len(self.feature), device=summary.device)
        node = torch.zeros(len(summary), len(tree), dtype=torch.int64, device=summary.device)
        for _ in range(self.model.leaves - 1):
            right = summary.gather(1, self.feature[tree, node]) > self.threshold[tree, node]
            node = self.branches[tree, node, right.long()]
        value: Tensor = self.value[tree, node].unflatten(-1, (TREES, self.outputs))
        return value

    def forward(self, batch: Batch) -> Tensor:
        """Logits, (B,) or (B, outputs)."""
        logits: Tensor = self._of_trees(batch["summary"]).sum(1).squeeze(-1) + self.offset
        return logits

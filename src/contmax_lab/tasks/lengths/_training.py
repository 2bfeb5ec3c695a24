"""One training: steps that run without the host, validation on the way, tests of the chosen weights at the end."""

import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from contmax_lab.recorded import RecordedStep
from contmax_lab.tasks.lengths._examples import examples, key_of
from contmax_lab.tasks.lengths._model import Network, Parts, compiled_parts
from contmax_lab.tasks.lengths._problems import FIRST_SEED, KINDS, ONCE, Cell, Problem

# The learning rate of a learned α, as a multiple of that of the weights. A head's α is a sigmoid of one number, which
# would hardly move at the learning rate of the weights.
_PACE_OF_ALPHA = 30.0
_LARGEST_NORM = 1.0
# The first α of rows in which α rises: nearly softmax.
_FIRST_ALPHA = 1.05
_BETAS = (0.9, 0.99)
# The number of validations of a training, and the examples of each length in a validation.
VALIDATIONS, VALIDATION_EXAMPLES = 20, 256
# A test has about _TEST_TOKENS tokens, but at least _FEWEST and at most _MOST examples.
_TEST_TOKENS, _FEWEST, _MOST = 2**21, 32, 1000
# The most tokens in memory at once where no gradient is needed.
_TOKENS_AT_ONCE = 2**18
# This number stands for a validation loss that is not finite.
_WORST = 1e9


class Training:
    """A model of one cell while it learns.

    On a GPU, the first steps run as they are and the others are played back as a CUDA graph: examples, forward and
    backward pass, and the step of the optimizer. What depends on the number of the step, such as the learning rate, is
    computed on the device.

    Args:
        cell: problem, row, seed, learning rate and number of steps.
        problem: the sizes of the problem and of the model.
        device: the device.
    """

    def __init__(self, cell: Cell, problem: Problem, device: torch.device) -> None:
        self.cell, self.problem, self.kind, self.device = cell, problem, KINDS[cell.kind], device
        torch.manual_seed(cell.seed)
        self.network = Network(problem, self.kind).to(device)
        self._parts = compiled_parts() if device.type == "cuda" else Parts()
        share = problem.warm_up / problem.steps
        self.warm_up = max(1, round(share * cell.steps))
        # α rises during the warm-up or a share of the training: with a larger α from the start, keys would get weight
        # 0, and so no gradient, before the model has learned anything.
        self.rise = self.warm_up if self.kind.rise is None else round(self.kind.rise * cell.steps)
        self.rises = self.kind.alpha > 1 and not self.kind.learned
        self.done, self.curve = 0, list[dict[str, float]]()
        # Maps the criterion for choosing weights, "short" or "longer", to score, step and weights.
        self.best: dict[str, tuple[tuple[float, ...], int, dict[str, Tensor]]] = {}
        self._key = key_of(cell.seed, "train")
        # The steps write these tensors on the device.
        self._step = torch.zeros((), dtype=torch.long, device=device)
        self._alpha = torch.ones((), device=device)
        self._sums = torch.zeros(2, device=device)
        self._optimizer = self._make_optimizer()
        if self.rises:
            for attention in self.network.attentions():
                attention.alpha = self._alpha
        self._take = self._recorded()

    def _recorded(self) -> Any:
        return RecordedStep(self._learn) if self.device.type == "cuda" else self._learn

    def _make_optimizer(self) -> torch.optim.Optimizer:
        of_heads = [p for name, p in self.network.named_parameters() if name.endswith("alpha_logit")]
        rest = [p for name, p in self.network.named_parameters() if not name.endswith("alpha_logit")]
        self._paces = [1.0, _PACE_OF_ALPHA] if of_heads else [1.0]
        groups = [{"params": group, "lr": torch.zeros((), device=self.device)} for group in (rest, of_heads) if group]
        on_gpu = self.device.type == "cuda"
        return torch.optim.AdamW(groups, betas=_BETAS, weight_decay=0.0, fused=True, capturable=on_gpu)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take one step."""
        if self.rises and self.done == self.rise:
            if self.device.type == "cuda":  # the graph that is dropped here must not be running
                torch.cuda.current_stream(self.device).synchronize()
            for attention in self.network.attentions():
                attention.alpha = self.kind.alpha
            self._take = self._recorded()
        self._take()
        self.done += 1

    def _learn(self) -> None:
        self._set_pace()
        batch = self.problem.batch
        numbers = self._step * batch + torch.arange(batch, device=self.device)
        tokens, is_target = examples(self.problem, self._key, numbers)
        self._optimizer.zero_grad()
        self.network.parts = self._parts
        logits = self.network(tokens[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        chosen = is_target[:, 1:].flatten()
        loss = (losses * chosen).sum() / chosen.sum()
        loss.backward()
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        is_bad = ~(norm.isfinite() & loss.isfinite())
        torch._foreach_mul_(gradients, (_LARGEST_NORM / (norm + 1e-6)).clamp(max=1))
        # If `found_inf` is 1, fused optimizers change neither weights nor moments.
        self._optimizer.found_inf = is_bad.float()  # type: ignore[attr-defined]
        self._optimizer.step()
        self._sums += torch.stack([torch.where(is_bad, 0, loss.detach()), is_bad])
        self._step += 1

    def _set_pace(self) -> None:
        """Set the learning rate of the current step, and α if it rises."""
        step, steps = self._step, self.cell.steps
        share = ((step - self.warm_up) / max(1, steps - self.warm_up)).clamp(min=0)
        rate = torch.where(step < self.warm_up, (step + 1) / self.warm_up, 0.5 * (1 + torch.cos(math.pi * share)))
        for group, pace in zip(self._optimizer.param_groups, self._paces, strict=True):
            group["lr"].copy_(pace * self.cell.rate * self.problem.rate * rate)
        if self.rises:
            self._alpha.copy_(_FIRST_ALPHA + (self.kind.alpha - _FIRST_ALPHA) * ((step + 1) / self.rise).clamp(max=1))

    # -- evaluations ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Add a point to the curve, and keep the weights if they are the best so far.

        The best weights have the most exact matches at length 64 and, among these, the smallest loss. A second set of
        weights is chosen as the authors do, by exact matches at a longer length. No weights are chosen while α rises.
        """
        loss, skipped = self._sums.tolist()
        self._sums.zero_()
        steps = self.done - (self.curve[-1]["step"] if self.curve else 0)
        point = {"step": self.done, "loss": loss / max(1, steps - skipped), "skipped": skipped}
        for name, length in (("short", self.problem.longest), ("longer", self.problem.longer)):
            matches, losses = self.measured("valid", length, VALIDATION_EXAMPLES)
            mean = float(losses.double().mean())
            point |= {name: float(matches.double().mean()), f"{name}_loss": mean if math.isfinite(mean) else _WORST}
        self.curve.append(point)
        if self.rises and self.done < self.rise:
            return
        at_short = (point["short"], -point["short_loss"])
        for name, score in (("short", at_short), ("longer", (point["longer"], *at_short))):
            if name not in self.best or score > self.best[name][0]:
                weights = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
                self.best[name] = (score, self.done, weights)

    @torch.no_grad()
    def measured(self, part: str, length: int, count: int) -> tuple[Tensor, Tensor]:
        """Whether each example is exactly right, and its mean loss per symbol, (count,).

        The model reads the correct symbols before each position. All its predictions are right if and only if greedy
        decoding, in which the model reads its own symbols, produces the right sequence and ends it.
        """
        self.network.parts = Parts()
        key, found = key_of(self.cell.seed, part), list[tuple[Tensor, Tensor]]()
        start = 0
        while start < count:
            size = min(count - start, max(1, _TOKENS_AT_ONCE // (2 * length)))
            numbers = torch.arange(start, start + size, device=self.device)
            tokens, is_target = examples(self.problem, key, numbers, length)
            last = int(is_target[0].sum())
            logits = self.network(tokens[:, :-1], last)
            targets = tokens[:, -last:]
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").unflatten(
                0, (size, last)
            )
            found.append(((logits.argmax(-1) == targets).all(-1), losses.mean(-1)))
            start += size
        matches, losses = zip(*found, strict=True)
        return torch.cat(matches), torch.cat(losses)

    def results(self, seconds: float, side_by_side: int) -> dict[str, Any]:
        """The results that are stored: settings, times, the curve, and the tests of the chosen weights."""
        chosen = dict[str, dict[str, Any]]()
        begun = time.monotonic()
        for name, (_, step, weights) in self.best.items():
            self.network.load_state_dict(weights)
            same = next((found for found in chosen.values() if found["step"] == step), None)
            chosen[name] = same or {"step": step, "tests": self._tests(), **self._alphas()}
        return {
            **self.cell._asdict(),
            "learning_rate": self.cell.rate * self.problem.rate,
            "warm_up": self.warm_up,
            "parameters": sum(p.numel() for p in self.network.parameters()),
            "skipped": sum(point["skipped"] for point in self.curve),
            "seconds": round(seconds, 2),
            "test_seconds": round(time.monotonic() - begun, 2),
            "side_by_side": side_by_side,
            "steps_per_second": round(side_by_side * self.cell.steps / max(seconds, 1e-9), 2),
            "chosen": chosen,
            "curve": self.curve,
        }

    def _tests(self) -> dict[str, dict[str, float | None]]:
        """The share of exact matches, the loss and the number of examples, for each multiple of the training length."""
        found = dict[str, dict[str, float | None]]()
        for factor in self.problem.factors:
            if factor >= ONCE and self.cell.seed != FIRST_SEED:
                continue
            length = self.problem.length(factor)
            matches, losses = self.measured("test", length, test_examples(length))
            mean = float(losses.double().mean())
            exact = float(matches.double().mean())
            loss = mean if math.isfinite(mean) else None
            found[f"{factor:g}x"] = {"exact": exact, "loss": loss, "examples": len(matches)}
        return found

    def _alphas(self) -> dict[str, list[list[float]]]:
        if not self.kind.learned:
            return {}
        alphas = [attention.alpha for attention in self.network.attentions()]
        return {"alpha": [[round(a, 4) for a in x.tolist()] for x in alphas if isinstance(x, Tensor)]}


def test_examples(length: int) -> int:
    """How many examples of a length are tested.

    Example:
        >>> [test_examples(length) for length in (64, 4096, 65_536)]
        [1000, 512, 32]
    """
    return max(_FEWEST, min(_MOST, _TEST_TOKENS // length))

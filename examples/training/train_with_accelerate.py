"""A training loop with accelerate: pooling that looks at an interval, on whatever devices and precision there are.

Run with `python examples/training/train_with_accelerate.py [STEPS]`, or with `accelerate launch` for several processes;
needs `pip install contmax accelerate`.
"""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import contmax

LENGTH, WIDTH = 60, 8


def bursts(count: int) -> TensorDataset:
    """Noise with a burst somewhere; the label is the sign of the burst in every other channel."""
    label = torch.randint(2, (count,))
    start, place = torch.randint(LENGTH - 10, (count, 1)), torch.arange(LENGTH)
    inside = (place >= start) & (place < start + 10)
    burst = torch.ones(count, WIDTH)
    burst[:, ::2] = 2.0 * label[:, None] - 1
    return TensorDataset(torch.randn(count, LENGTH, WIDTH) + 2 * inside[..., None] * burst[:, None], label)


class Classifier(torch.nn.Module):
    """A sequence → its mean under a density that the model places → logits."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = contmax.nn.ContinuousAttention(contmax.basis.GaussianBasis.covering(32), embed_dim=WIDTH)
        self.head = torch.nn.Linear(WIDTH, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        context, _ = self.attend(values)
        return self.head(context)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    accelerator = Accelerator()
    set_seed(0)
    model, data, test = Classifier(), bursts(2000), bursts(500)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=64, shuffle=True), DataLoader(test, batch_size=100)
    )
    done = 0
    while done < steps:
        for values, label in loader:
            loss = contmax.losses.entmax_loss(model(values), label, alpha=1.5)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break
    model.eval()
    right = [accelerator.gather_for_metrics(model(values).argmax(-1) == label) for values, label in test_loader]
    accelerator.print(f"accuracy {torch.cat(right).float().mean():.2f} after {steps} steps")


if __name__ == "__main__":
    main()

"""A classifier with entmax attention and an entmax loss under Lightning: nothing of it knows of contmax.

Run with `python examples/training/train_with_lightning.py [STEPS]`; needs `pip install contmax pytorch-lightning`.
"""

import sys

import pytorch_lightning as lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import contmax
from contmax.losses import entmax_loss
from contmax.nn import EntmaxAttention

WORDS, LENGTH, WIDTH, CLASSES = 50, 12, 32, 4


def sentences(count: int) -> TensorDataset:
    """Words that mean nothing, and among them one of four signals, which is the label."""
    words = torch.randint(CLASSES, WORDS, (count, LENGTH))
    label = torch.randint(CLASSES, (count,))
    words[torch.arange(count), torch.randint(LENGTH, (count,))] = label
    return TensorDataset(words, label)


class Classifier(lightning.LightningModule):
    """Words → entmax attention with a learned α per head → the mean → logits; trained with the loss of 1.5-entmax."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.attend = EntmaxAttention(WIDTH, 2, learnable=True)
        self.head = torch.nn.Linear(WIDTH, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(words)
        return self.head((hidden + self.attend(hidden)).amax(1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        words, label = batch
        return entmax_loss(self(words), label, alpha=1.5)

    def test_step(self, batch: list[torch.Tensor], number: int) -> None:
        words, label = batch
        p = contmax.entmax(self(words), alpha=1.5)
        self.log("accuracy", (p.argmax(-1) == label).float().mean())
        self.log("classes with probability", (p > 0).sum(-1).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(sentences(2000), batch_size=64, shuffle=True))
    (measured,) = trainer.test(model, DataLoader(sentences(500), batch_size=500), verbose=False)
    print(", ".join(f"{name} {value:.2f}" for name, value in measured.items()))


if __name__ == "__main__":
    main()

"""A trained transformer gets exact zeros: softmax becomes 1.5-entmax little by little while it is fine-tuned.

A small BERT learns with softmax to tell at every word which of four signals is hidden in the sentence. Then α rises
from 1 to 1.5 under transformers' Trainer, the accuracy stays, and most weights of its attention end at exactly zero.
Run with `python examples/transformers_entmax.py [FILE.png [STEPS]]`; needs `pip install contmax[hf,viz]`.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
import torch
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments

from contmax.integrations import transformers as entmax

mpl.use("Agg")
from matplotlib import pyplot as plt

SIGNALS, WORDS, LENGTH = 4, 50, 14


class Sentences(torch.utils.data.Dataset):
    """Words that mean nothing, and among them one of four signals, which is the label of every word."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randint(10, WORDS, (count, LENGTH), generator=generator)
        signal = torch.randint(0, SIGNALS, (count,), generator=generator)
        self.place = torch.randint(1, LENGTH, (count,), generator=generator)
        self.words[torch.arange(count), self.place] = 2 + signal
        self.words[:, 0] = 1
        self.label = signal.unsqueeze(-1).repeat(1, LENGTH)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.label[index]}


def train(model, steps, callbacks=()):
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=64,
            learning_rate=5e-3,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=Sentences(2000, seed=1), callbacks=list(callbacks)).train()


@torch.no_grad()
def tested(model, data):
    """The accuracy, what the first word attends to (mean of layers and heads), how many of all weights are zero."""
    device = model.device
    output = model.eval()(input_ids=data.words.to(device), output_attentions=True)
    accuracy = (output.logits.argmax(-1).cpu() == data.label).float().mean().item()
    zeros = torch.cat([layer.flatten() for layer in output.attentions]).eq(0).float().mean().item()
    return accuracy, torch.stack(output.attentions)[:, :, :, 0].mean((0, 2)).cpu(), zeros


def main() -> None:
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "build/figures/transformers_entmax.png")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    torch.manual_seed(0)
    entmax.register()
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=SIGNALS,
    )
    model = BertForTokenClassification(config)
    train(model, steps)  # this is what a pretrained model comes with: softmax

    model.set_attn_implementation("entmax")
    entmax.set_alpha(model, 1.0)
    test = Sentences(300, seed=2)
    before = tested(model, test)
    train(model, steps, [entmax.AlphaSchedule(goal=1.5, rise=0.5)])
    after = tested(model, test)

    figure, grid = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained", sharey=True)
    for axes, alpha, (accuracy, weights, zeros) in zip(grid, (1.0, 1.5), (before, after), strict=True):
        print(f"α = {alpha}: accuracy {accuracy:.3f}, exact zeros {zeros:.0%}")
        axes.imshow(torch.where(weights[:12] == 0, torch.nan, weights[:12]), cmap="Blues", vmin=0, aspect="auto")
        axes.plot(test.place[:12], range(12), "o", ms=16, mfc="none", mec="C3", label="the signal")
        axes.set(title=f"α = {alpha}: accuracy {accuracy:.1%}, {zeros:.0%} exact zeros", xlabel="place in the sentence")
        axes.set_facecolor("0.93")
    grid[0].set_ylabel("sentence")
    grid[0].legend(loc="lower left", bbox_to_anchor=(0, -0.25), frameon=False)
    figure.suptitle("What the first word attends to, mean of layers and heads (grey: exactly zero in all of them)")
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
    print(f"Picture: {output}")


if __name__ == "__main__":
    main()

"""LoRA on a model with entmax attention: PEFT trains two small matrices per projection, under transformers' Trainer.

Run with `python examples/training/lora_with_peft.py [STEPS]`; needs `pip install 'contmax[hf]' peft`. The model is made
on the spot; yours comes from `AutoModelForSequenceClassification.from_pretrained(…, attn_implementation="entmax")`.
"""

import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from contmax.integrations import transformers as entmax

WORDS, LENGTH = 50, 12


class Sentences(torch.utils.data.Dataset):
    """Words that mean nothing; the label says whether word 2 is among them."""

    def __init__(self, count):
        self.words = torch.randint(3, WORDS, (count, LENGTH))
        self.label = torch.arange(count) % 2
        self.words[self.label == 1, LENGTH // 2] = 2

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.label[index]}


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    torch.manual_seed(0)
    entmax.register()
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2
    )
    base = BertForSequenceClassification._from_config(config, attn_implementation="entmax")
    lora = LoraConfig(TaskType.SEQ_CLS, r=4, target_modules=["query", "value"])
    model = get_peft_model(base, lora)
    trained, all_of_them = model.get_nb_trainable_parameters()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=32,
            learning_rate=5e-3,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        schedule = entmax.AlphaSchedule(goal=1.5, rise=0.5)  # begins at softmax, as a pretrained model was trained
        Trainer(model, arguments, train_dataset=Sentences(2000), callbacks=[schedule]).train()
        model.save_pretrained(folder)  # the adapters and the classifier, not the base model

        new = Sentences(200)
        output = model.eval()(input_ids=new.words.to(model.device), output_attentions=True)
        again = PeftModel.from_pretrained(model.unload(), folder).eval()
        torch.testing.assert_close(again(input_ids=new.words.to(model.device)).logits, output.logits)
    accuracy = (output.logits.argmax(-1).cpu() == new.label).float().mean()
    zeros = torch.cat([weights.flatten() for weights in output.attentions]).eq(0).float().mean()
    print(
        f"{trained:,} of {all_of_them:,} parameters trained: accuracy {accuracy:.2f}, {zeros:.0%} of the weights zero"
    )


if __name__ == "__main__":
    main()

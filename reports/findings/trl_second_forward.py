"""TRL 1.16.0: with `compute_loss_func`, SFTTrainer runs each micro-batch through the model twice in training mode."""

import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WIDTH = 8


class Norm(torch.nn.BatchNorm1d):
    def forward(self, hidden):
        return super().forward(hidden.transpose(1, 2)).transpose(1, 2)


model = GPT2LMHeadModel(GPT2Config(vocab_size=4, n_positions=4, n_embd=WIDTH, n_layer=1, n_head=1))
model.transformer.ln_f = Norm(WIDTH)
words = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        use_cpu=True,
        bf16=False,
        max_steps=1,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"input_ids": [[1, 2, 3]]}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>"),
        compute_loss_func=lambda outputs, labels, num_items_in_batch: outputs.logits.sum() / num_items_in_batch,
    ).train()
seen = model.transformer.ln_f.num_batches_tracked.item()
print(f"observed: after one micro-batch, a batch norm in the model has updated its statistics {seen} times")
print("expected: once")
sys.exit(seen != 1)

"""TRL 1.16.0: on resume inside a later epoch, several ranks read the order of epoch 0.

`train_sampling_strategy="batch_rebalance"` and custom samplers are affected; the default sampler is not.
"""

import os
import socket
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

RANKS, SAMPLES, EPOCHS, SAVED_AFTER = 2, 8, 2, 6


def train(rank, port, folder, resume):
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": RANKS, "MASTER_PORT": port}.items():
        os.environ[name] = str(value)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    read = []
    model = GPT2LMHeadModel(GPT2Config(vocab_size=SAMPLES, n_positions=SAMPLES + 1, n_embd=8, n_layer=1, n_head=1))
    # The first token of a sample is its number.
    model.transformer.wte.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0][0, 0].item()))
    words = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    arguments = SFTConfig(
        folder,
        use_cpu=True,
        bf16=False,
        ddp_backend="gloo",
        per_device_train_batch_size=1,
        num_train_epochs=EPOCHS,
        gradient_checkpointing=False,
        save_strategy="steps",
        save_steps=SAVED_AFTER,
        train_sampling_strategy="batch_rebalance",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=Dataset.from_dict({"input_ids": [[number] * (number + 2) for number in range(SAMPLES)]}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>"),
    )
    trainer.train(resume and os.path.join(folder, f"checkpoint-{SAVED_AFTER}"))
    if rank == 0:
        torch.save(read, os.path.join(folder, "read"))


def read_by_rank_0(folder, resume):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    torch.multiprocessing.start_processes(train, (port, folder, resume), RANKS, start_method="fork")
    return torch.load(os.path.join(folder, "read"))


with tempfile.TemporaryDirectory() as folder:
    through = read_by_rank_0(folder, None)[SAVED_AFTER:]
    resumed = read_by_rank_0(folder, True)
print(f"observed: resumed after step {SAVED_AFTER} of 8, in the second epoch, rank 0 reads the samples {resumed}")
print(f"expected: {through}, as without a stop")
sys.exit(resumed != through)

"""Hugging Face Accelerate with its own accumulation."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def training_function(config):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    dataset = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    train_dataloader = DataLoader(dataset, shuffle=True, batch_size=16)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer=optimizer)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    for _epoch in range(config["num_epochs"]):
        model.train()
        for source, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(source), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
    accelerator.print("done")


if __name__ == "__main__":
    training_function({"lr": 2e-5, "num_epochs": 3})

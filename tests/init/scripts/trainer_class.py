"""A class that makes everything by itself, and accumulates."""

from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class TrainingArgs:
    accumulation_steps: int = 8
    epochs: int = 2
    grad_clip: float = 1.0


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x)


class Trainer:
    def __init__(self, args: TrainingArgs):
        self.args = args
        self.device = "cuda:0"
        self.model = self.build_model()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=0.1,
            momentum=0.9,
        )
        self.criterion = torch.nn.SmoothL1Loss()

    def build_model(self):
        return Regression().to(self.device)

    def get_loader(self):
        return DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)

    def fit(self):
        loader = self.get_loader()
        for _ in range(self.args.epochs):
            for step, (x, y) in enumerate(loader, 1):
                x, y = x.to(self.device), y.to(self.device)
                loss = self.criterion(self.model(x), y) / self.args.accumulation_steps
                loss.backward()
                if step % self.args.accumulation_steps == 0 or step == len(loader):
                    torch.nn.utils.clip_grad_value_(self.model.parameters(), self.args.grad_clip)
                    self.optimizer.step()
                    self.optimizer.zero_grad()


if __name__ == "__main__":
    Trainer(TrainingArgs()).fit()

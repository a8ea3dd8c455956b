"""Lightning 2.6.6: a short last accumulation window is divided by the nominal number of micro-batches."""

import logging
import sys
import warnings

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATION = 4


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.gradients = []

    def training_step(self, batch):
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.model.weight.grad.item())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
module = Regression()
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=ACCUMULATION, **quiet)
# Five micro-batches of one sample: a window of four, and one of one.
trainer.fit(module, DataLoader(TensorDataset(torch.ones(5, 1), torch.ones(5, 1)), 1))

# All samples are equal, so the mean over any window has the same gradient.
whole, short = module.gradients
print(f"observed: the gradient of the full window is {whole}, of the short one {short}")
print(f"expected: both are {whole}")
sys.exit(whole != short)

"""Lightning 2.6.6: the learning-rate schedule advances when GradScaler skips a step."""

import logging
import sys
import warnings

import lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.rates = []

    def training_step(self, batch):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        return torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
module = Regression()
# At this loss scale the first gradient overflows fp16, and at the next one it does not.
plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**15))
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, plugins=plugin, **quiet)
trainer.fit(module, DataLoader(TensorDataset(torch.ones(2, 1), torch.ones(2, 1)), 1))

print(f"observed: the first step is skipped; the next has the learning rate {module.rates[1]}")
print(f"expected: no step was taken, so it is still {module.rates[0]}")
sys.exit(module.rates[1] != module.rates[0])

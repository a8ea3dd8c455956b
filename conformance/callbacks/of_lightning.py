"""Watches `Trainer.fit` of Lightning:

callback = LightningCallback(check=False)
Trainer(callbacks=[callback]).fit(module)
print(callback.watch)
"""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from conformance.callbacks.blocks import Block


class LightningCallback(Block, Callback):
    """Raises NotConforming at the end of a fit that does not conform, unless `check` is False."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # The process group exists, and the optimizers do not yet.
        if stage == "fit":
            self.begin()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.abandon()

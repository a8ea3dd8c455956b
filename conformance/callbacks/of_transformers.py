"""Watches `Trainer.train` of transformers:

callback = TransformersCallback(check=False)
Trainer(model, arguments, train_dataset=rows, callbacks=[callback]).train()
print(callback.watch)
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from conformance.callbacks.blocks import Block


class TransformersCallback(Block, TrainerCallback):
    """Raises NotConforming at the end of a training that does not conform, unless `check` is False.

    A training that raises ends no callback: its watch ends when the next training begins.
    """

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begin()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.end()

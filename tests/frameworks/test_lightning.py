"""Defaults of Lightning that the adapter changes."""

from __future__ import annotations

import pytest

from conformance.cases.case import Case

TARGET = "conformance.frameworks.lightning"

# The Trainer with its defaults, except output. It gets a loader over all samples in order.
PLAIN = """
    import lightning as L
    from conformance import Task, trainer

    class Printing(L.LightningModule):
        def __init__(self, task: Task) -> None:
            super().__init__()
            self.task, self.model = task, task.model()

        def training_step(self, batch):
            outputs = self.model(batch.inputs)
            print("forward in", outputs.dtype)
            return self.task.loss(outputs, batch)

        def configure_optimizers(self):
            return self.task.optimizer(self.parameters())

    @trainer(backends=["single", "ddp"], precisions=["fp32", "fp16"])
    def train(task: Task) -> None:
        fitter = L.Trainer(
            accelerator="cpu", devices=task.world_size, precision="{precision}", max_epochs=1, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )
        fitter.fit(Printing(task), task.global_dataloader())
"""


def test_sixteen_mixed_on_a_cpu_is_bfloat16(run, write):
    """So the adapter passes the plugin behind "16-mixed"."""
    target = write(PLAIN.format(precision="16-mixed"))
    [rank] = run(target, Case("single", 1, 1, "fp16", "momentum"))
    seen = {line for line in rank.output.splitlines() if line.startswith("forward in")}
    assert seen == {"forward in torch.bfloat16"}


@pytest.mark.parametrize(("backend", "world_size", "in_order"), [("single", 1, True), ("ddp", 2, False)])
def test_ranks_read_a_loader_shuffled_that_one_process_reads_in_order(run, write, backend, world_size, in_order):
    """So the adapter passes this rank's own loader."""
    case = Case(backend, world_size, 1, "fp32", "momentum")
    ranks = run(write(PLAIN.format(precision="32-true")), case)
    forwards = [next(event for event in rank.events if event["event"] == "forward") for rank in ranks]
    read = [row for forward in forwards for row in forward["rows"]]
    x = [tuple(row) for row in case.spec()["samples"]["x"]]
    distinct = list(dict.fromkeys(x))
    batch = [distinct.index(row) for row in x[: len(read)]]
    assert (sorted(read) == sorted(batch)) is in_order

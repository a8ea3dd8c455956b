"""Defaults of Lightning that the adapter changes, and the callback."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import pytest
import torch

from conformance.callbacks import LightningCallback
from conformance.cases.case import Case

TARGET = "conformance.frameworks.lightning"
# Of Lightning, about few workers, and of torch, about Lightning.
pytestmark = pytest.mark.filterwarnings("ignore")

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


class Plain(L.LightningModule):
    """Optimizes by hand, and clears its gradients or does not; or as Lightning does."""

    def __init__(self, clears: bool | None = None) -> None:
        super().__init__()
        self.layer, self.clears = torch.nn.Linear(3, 2), clears
        self.automatic_optimization = clears is None

    def training_step(self, batch):
        loss = self.layer(batch).square().mean()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            if self.clears:
                optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fitted(module: L.LightningModule, callback: LightningCallback, **options: object) -> None:
    fitter = L.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], **options,
    )  # fmt: skip
    fitter.fit(module, torch.utils.data.DataLoader(torch.randn(16, 3), 4))


@pytest.mark.parametrize("clears", [None, True])
def test_a_right_training_conforms(clears):
    callback = LightningCallback()
    fitted(Plain(clears), callback, devices=1)
    assert (callback.watch.verdict, callback.watch.findings.steps) == ("CONFORMS", 4)


def test_a_wrong_training_raises_at_its_end():
    callback = LightningCallback()
    with pytest.raises(AssertionError, match="watch/cleared"):
        fitted(Plain(False), callback, devices=1)
    assert callback.watch.verdict == "DOES NOT CONFORM"


def test_a_training_that_fails_has_no_verdict_and_leaves_torch_as_it_was():
    class Fails(Plain):
        def training_step(self, batch):
            raise KeyError("its own")

    before = torch.optim.Optimizer.zero_grad
    with pytest.raises(KeyError, match="its own"):
        fitted(Fails(), LightningCallback(), devices=1)
    assert torch.optim.Optimizer.zero_grad == before


class Telling(LightningCallback):
    def on_fit_end(self, trainer, pl_module):
        super().on_fit_end(trainer, pl_module)
        Path(f"verdict-{trainer.global_rank}").write_text(f"{self.watch.verdict} {self.watch.findings.steps}")


def test_ranks_share_a_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted(Plain(), Telling(), devices=2, strategy="ddp_spawn")
    assert [Path(f"verdict-{rank}").read_text() for rank in range(2)] == ["CONFORMS 4"] * 2

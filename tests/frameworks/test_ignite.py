"""Why the adapter for PyTorch-Ignite does not support fp16."""

from __future__ import annotations

from conformance.cases.case import Case

AMP_ON_A_CPU = """
    from ignite.engine import create_supervised_trainer
    from torch.nn.functional import mse_loss
    from conformance import Task, trainer

    @trainer(backends=["single"], precisions=["fp16"])
    def train(task: Task) -> None:
        model = task.model()
        model.register_forward_hook(lambda module, args, output: print("forward in", output.dtype))
        optimizer = task.optimizer(model.parameters())
        engine = create_supervised_trainer(model, optimizer, mse_loss, "cpu", amp_mode="amp", scaler=True)
        engine.run(task.dataloader(format=tuple))
"""


def test_amp_mode_on_a_cpu_is_float32(run, write):
    """So the adapter does not support fp16."""
    [rank] = run(write(AMP_ON_A_CPU), Case("single", 1, 1, "fp16", "overflow"))
    assert {line for line in rank.output.splitlines() if line.startswith("forward")} == {"forward in torch.float32"}

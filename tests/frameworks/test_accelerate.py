"""Why the adapter for Accelerate does not support fp16."""

from __future__ import annotations

from conformance.cases.case import Case

FP16_ON_A_CPU = """
    from accelerate import Accelerator
    from conformance import Task, trainer

    @trainer(backends=["single"], precisions=["fp16"])
    def train(task: Task) -> None:
        accelerator = Accelerator(cpu=True, mixed_precision="fp16")
        model = task.model()
        model.register_forward_hook(lambda module, args, output: print("forward in", output.dtype))
        optimizer = task.optimizer(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, task.global_dataloader())
        for batch in loader:
            accelerator.backward(task.loss(model(batch.inputs), batch))
            optimizer.step()
            optimizer.zero_grad()
"""


def test_fp16_on_a_cpu_is_float32(run, write):
    """So the adapter does not support fp16."""
    [rank] = run(write(FP16_ON_A_CPU), Case("single", 1, 1, "fp16", "overflow"))
    assert set(rank.output.splitlines()) == {"forward in torch.float32"}
    assert {event["scale"] for event in rank.events if event["event"] == "step"} == {None}

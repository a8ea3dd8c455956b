"""Generates docs/laws.md: every law with its reasons, and the permissions.

python tools/laws_page.py
"""

from __future__ import annotations

from pathlib import Path

from conformance.laws.chapters import CHAPTERS
from conformance.laws.explain import told_beside
from conformance.laws.law import Law, catalogue

PAGE = Path(__file__).parents[1] / "docs" / "laws.md"

#: Unusual but correct behaviour that no law may flag, by the file in fixtures/variants with a trainer that has it.
PERMISSIONS: dict[str, str] = {
    "ddp_without_accumulation.patch": "DDP MAY be used without accumulation.",
    "recomputes_activations.patch": "A backward MAY run the forward again.",
    "averaged_by_hand.py": "Ranks MAY average their gradients by hand, also before the loss scale is divided out.",
    "horovod_averages_by_hand.patch": "Gradients MAY be averaged by Horovod without its optimizer.",
    "overflow_shared_in_unscale.py": "Ranks MAY average gradients after `unscale_` if they share overflows in it.",
    "window_left_out_for_its_loss.py": "All ranks MAY leave out a window whose loss is infinite, before its backward.",
    "clipped_at_scaled_threshold.patch": "Gradients that carry the loss scale MAY be clipped at the threshold times "
    "the scale.",
    "clipped_by_hand.patch": "Gradients MAY be clipped by hand after they are unscaled.",
    "clipped_per_group.patch": "The parameters MAY be clipped in several groups, each once.",
    "closure.py": "The step MAY be given a closure that does the forwards and backwards.",
    "comm_hook.patch": "DDP's all-reduce MAY be issued by a communication hook.",
    "divided_gradients.patch": "Gradients MAY be divided instead of the losses.",
    "scaled_after_division.patch": "The loss MAY be divided after it is scaled, or before.",
    "waits_in_every_way.py": "A collective MAY be asynchronous, and be waited for in any way before the step.",
    "logs_asynchronously.py": "Copies of gradients MAY be reduced for a log, and be waited for after the step.",
    "evaluates_between_steps.patch": "The model MAY be evaluated between steps.",
    "frozen_parameter.patch": "Parameters MAY be frozen.",
    "fused_optimizer.patch": "An optimizer MAY unscale and skip in its own kernel, when the scaler calls it.",
    "gradient_penalty.patch": "A loss MAY contain the gradient of another loss, or be followed by it.",
    "penalty_on_a_forward_of_its_own.patch": "A micro-batch MAY go forward again for a gradient that "
    "`torch.autograd.grad` takes.",
    "horovod_plain_step.patch": "Horovod's step MAY synchronize by itself if nothing reads or changes gradients "
    "before it.",
    "horovod_scaled_after_synchronize.patch": "A loss MAY be scaled before or after Horovod's `synchronize()`.",
    "horovod_synchronize_first.patch": "`synchronize()` of Horovod's optimizer MAY be called although nothing is "
    "clipped.",
    "inner_module_before_the_last.patch": "Micro-batches that stay local MAY go through the module inside DDP "
    "instead of `no_sync()`.",
    "averages_weights.patch": "A moving average of the weights MAY be kept after each step.",
    "one_backward_over_window.patch": "The losses of a window MAY be added up for one backward.",
    "reduces_loss_for_logging.patch": "Ranks MAY exchange values that do not enter the training, such as losses for "
    "a log.",
    "overflow_agreed.patch": "Ranks MAY unscale before they average if they exchange which of them overflowed.",
    "own_grad_scaler.patch": "A scaler MAY have the trainer's own settings.",
    "ring_per_parameter.patch": "Gradients MAY be averaged by messages from rank to rank, in pieces.",
    "parameter_server.patch": "A rank MAY gather, average and broadcast the gradients.",
    "scale_as_gradient.patch": "The scale MAY be passed to `backward()` as its initial gradient.",
    "scaled_by_hand.patch": "The loss MAY be multiplied by the scale by hand.",
    "server_takes_any_worker.patch": "On the backend parameter-server one rank MAY take the steps for all and send "
    "them the weights.",
    "several_optimizers.patch": "Several optimizers MAY be unscaled and stepped one after the other, with one "
    "`update()` at the end.",
    "synchronizes_by_flag.patch": "DDP's flag MAY be set instead of `no_sync()`.",
    "unscaled_by_hand.patch": "A trainer MAY unscale and check gradients by hand and step without the scaler.",
    "unscaled_without_clipping.patch": "`unscale_` MAY be called although nothing is clipped.",
    "unused_parameter.patch": "An optimizer MAY have parameters that no forward uses.",
    "window_in_one_forward.patch": "The micro-batches of a window MAY go forward together.",
    "zero_grad_last.patch": "Gradients MAY be cleared before a window or after its step.",
    "zero_grad_to_zero.patch": "Gradients MAY be cleared to zero instead of None.",
}

HEAD = """# Laws

Rules that a trainer or a script must not break, and why. Each run of a case records a trace on every rank, and each law
is checked against these traces. A broken SHOULD is a warning. A broken MUST explains wrong numbers. If the numbers are
correct, the trainer reached them in another way, so most laws are then not reported; the others mean that another run
of the same trainer can go wrong, and fail it. A law is not reported if another one explains the bug better. The last
chapter is for [`conformance watch`](watch.md), which judges scripts without a plan of what they should do.

This page is generated: `python tools/laws_page.py`. In a terminal, `conformance laws` lists the laws and `conformance
explain` prints one.

| Law | |
| --- | --- |
"""

HEAD_OF_PERMISSIONS = """## Permissions

Behaviour that no law flags. Each line links to a correct trainer with it; the tests run them all.

"""


def page() -> str:
    contents = "\n".join(f"| {_link(law.id)} | {law.says} |" for law in catalogue())
    chapters = [
        "\n\n".join([f"## {title}", *(_law(law) for law in catalogue() if law.chapter == chapter)])
        for chapter, title in CHAPTERS.items()
    ]
    permissions = "\n".join(
        f"- {says} ([{Path(variant).stem}](../fixtures/variants/{variant}))" for variant, says in PERMISSIONS.items()
    )
    return "\n\n".join([HEAD + contents, *chapters, HEAD_OF_PERMISSIONS + permissions]) + "\n"


def _law(law: Law) -> str:
    beside = [f"{label}: {text.rstrip('.')}." for label, text in told_beside(law, _link)]
    snippet = [f"```python\n{law.fix}\n```"] if law.needs_plan else []
    return "\n\n".join([f"### {law.id}", f"**{law.says}**", law.why, *beside, *snippet])


def _link(id: str) -> str:
    return f"[{id}](#{id.replace('/', '')})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

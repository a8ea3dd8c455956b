"""Writes docs/laws.md, all laws and permissions in a line each, and docs/properties.md, what a watch reports.

python tools/laws_page.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from conformance.laws.chapters import CHAPTERS
from conformance.laws.chapters.watch_scripts import AS_EXPECTED
from conformance.laws.law import catalogue
from conformance.watch.judging.properties import FACTS, VALUES, Property, usual
from conformance.watch.report.sentences import WORDS

PAGE = Path(__file__).parents[1] / "docs" / "laws.md"
PROPERTIES = PAGE.with_name("properties.md")

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

All rules that `conformance run` and `conformance watch` check, in a line each, and what no rule flags.

Each law has a page on the site, `laws/ID.html`, with wrong and correct code and the output for the wrong code.
`conformance explain ID` prints a law in a terminal.

- **MUST**: breaking it fails a case, and it explains wrong numbers. **SHOULD**: breaking it is a warning.
- Correct numbers prove that a trainer did the same in another way. Then most laws are not reported.
- A law is not reported next to one that explains the bug better.

This page is generated: `python tools/laws_page.py`.

"""

HEAD_OF_PERMISSIONS = """## Permissions

No law flags these. Each line links to a correct trainer that does it; the tests run them all.

"""


HEAD_OF_PROPERTIES = """# Properties and verdicts of a watch

What each row of `conformance watch` means, which values `--expect` takes, and what leaves a row open.

This page is generated: `python tools/laws_page.py`.

## Verdicts

| Verdict | Exit code | When |
| --- | --- | --- |
| CONFORMS | 0 | `ranks`, `micro-batches` and `clearing` are PROVEN in every judged step, and no row is WRONG |
| DOES NOT CONFORM | 1 | A row is WRONG |
| UNDECIDED | 4 | One of the three is OPEN, or the watch missed something |

If the script fails, the watch exits with the script's code, or with 128 + N after signal N, and never says CONFORMS.

## Rows

- **PROVEN**: as expected, with the number of steps or comparisons.
- **WRONG**: a bug in any script, or a value that `--expect` excludes. A card shows the line, the effect and the fix.
- **OPEN**: a fact that may be intended. The row names the option that settles it. With `--strict`, it fails.
"""


def page() -> str:
    """The text of docs/laws.md."""
    chapters = [
        f"## {title}\n\n| Law | |\n| --- | --- |\n"
        + "\n".join(f"| `{law.id}` | {law.says} |" for law in catalogue() if law.chapter == chapter)
        for chapter, title in CHAPTERS.items()
    ]
    permissions = "\n".join(
        f"- {says} ([{Path(variant).stem}](../fixtures/variants/{variant}))" for variant, says in PERMISSIONS.items()
    )
    return HEAD + "\n\n".join([*chapters, HEAD_OF_PERMISSIONS + permissions]) + "\n"


def properties() -> str:
    """The text of docs/properties.md."""
    return "\n".join([HEAD_OF_PROPERTIES, *("\n\n".join(_property(of)) + "\n" for of in Property)])


def _property(of: Property) -> Iterator[str]:
    yield f"## {of.value}"
    values = [
        f"| `{value}`{' (expected)' if value == usual(of) else ''} | {what} |" for value, what in VALUES[of].items()
    ]
    yield "\n".join(["| Value | Meaning |", "| --- | --- |", *values])
    if laws := [law for law in catalogue() if law.shows and law.shows[0] == of and law.id != AS_EXPECTED]:
        yield "WRONG if one of these laws is broken:"
        yield "\n".join(f"- `{law.id}`: {law.says}" for law in laws)
    yield "OPEN after one of these facts:"
    facts = [(code, value) for code, (property, value) in FACTS.items() if property == of]
    settled = [(_sentence(code), f"`--expect {of.value}={value}`" if value else "–") for code, value in facts]
    yield "\n".join(["| Fact | Settled by |", "| --- | --- |", *(f"| {fact} | {by} |" for fact, by in settled)])


def _sentence(code: str) -> str:
    """What a row says, with letters for its values."""
    counted = r"\{\w+:(?!times|size|share)([a-z][a-z -]+?)(s?)\}"
    text = re.sub(counted, lambda found: f"N {found[1]}{'ses' if found[2] else 's'}", WORDS[code])
    return re.sub(r"\{\w+(:[^}]*)?\}", "…", text)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    PROPERTIES.write_text(properties(), encoding="utf-8")

"""Each adapter of a framework gets the verdicts, for the reasons, that its published report has.

Which of them are known not to conform, docs/frameworks.md says. nox's sessions run one framework each.
"""

from __future__ import annotations

import pytest

from .published import judged_by_command, published, reasons

#: By path and precision, the workloads that show the most in the least time, or all; the published report has all that
#: a run chooses. Without any, they are all of the report.
CASES: dict[str, str] = {
    "accelerate": """
        single-batched-fp32: all
        single-acc2-fp32: weighted own-order short-epochs-resumed-at-3 many-tensors-resumed-at-4
        single-acc2-bf16: momentum
        single-acc4-fp32: short-window
        single-acc4-fp64: uneven-batch
        ddp-w2-acc2-fp32: weighted clip-norm two-groups unused buffers short-epochs own-order momentum-resumed-at-3
            adamw-resumed-at-3 dropout-resumed-at-3 many-tensors-resumed-at-4 own-order-resumed-at-4
            momentum-resumed-at-4-on-3-ranks
        ddp-w2-fp32: uneven-batch
        ddp-w3-acc2-fp64: all
    """,
    "fabric": """
        single-batched-fp32: momentum
        single-acc2-fp16: overflow growing-scale-resumed-at-3
        single-batched-bf16: decay
        single-acc3-fp64: weighted
        single-acc2-fp32: own-order short-epochs-resumed-at-3 frozen-resumed-at-3 own-order-resumed-at-3
        single-acc4-fp32: short-window
        single-acc2-fp64: adamw-clip many-clip-norm line many-tensors
        ddp-w2-acc2-fp32: weighted clip-norm clip-value two-groups adamw short-epochs own-order sampler-drops
            uneven-batch many-tensors-resumed-at-4 own-order-resumed-at-4 sampler-pads-resumed-at-4
            momentum-resumed-at-3-twice
        ddp-w2-acc2-fp16: overflow-clip infinite-loss many-tensors
        ddp-w2-fp64: line two-workers momentum
        ddp-w2-acc2-fp64: adamw-resumed-at-3
        ddp-w3-fp64: clip-norm
        ddp-w3-acc2-bf16: momentum
        ddp-w4-fp32: momentum
        single-batched-fp64: multivariate
    """,
    "fastai": """
        single-batched-fp64: momentum clip-norm two-groups line
        single-batched-fp32: own-order epoch-schedule large-tensors epoch-schedule-resumed-at-2
            many-tensors-resumed-at-3
        single-acc2-fp32: adamw adagrad clip-norm adamw-groups two-layers short-window uneven-batch short-epochs
            own-order epoch-schedule many-tensors frozen own-order-resumed-at-3 frozen-resumed-at-3
            many-groups-resumed-at-3
        single-acc2-fp64: finer-data many-clip-norm two-workers
        single-acc3-fp64: short-window
        single-acc4-fp32: uneven-batch
    """,
    "funasr": """
        single-batched-fp32: momentum
        single-acc2-fp32: clip-norm short-window many-tensors many-tensors-resumed-at-3 momentum-resumed-at-3
            momentum-resumed-at-3-twice momentum-resumed-at-3-killed momentum-resumed-at-3-killed-between-files
        ddp-w2-fp32: momentum momentum-resumed-at-4
        ddp-w2-acc2-fp32: momentum
        ddp-w3-acc2-fp32: sgd
    """,
    "ignite": """
        single-batched-fp64: momentum
        single-batched-fp32: epoch-schedule
        single-acc2-fp64: adamw
        single-acc4-fp32: short-window
        single-acc2-fp32: uneven-batch many-tensors-resumed-at-3 own-order own-order-resumed-at-3 own-order-resumed-at-4
        ddp-w2-acc2-fp32: momentum two-groups sparse unused buffers frozen short-epochs sampler-drops own-order
            many-tensors adamw-resumed-at-3 dropout-resumed-at-3 short-epochs-resumed-at-3 own-order-resumed-at-3
            many-tensors-resumed-at-4 own-order-resumed-at-4 sampler-pads-resumed-at-4 momentum-resumed-at-3-twice
            momentum-resumed-at-3-killed momentum-resumed-at-3-killed-between-files epoch-schedule-resumed-at-2
        ddp-w2-fp64: uneven-batch
        ddp-w3-fp64: decay
        ddp-w4-fp32: momentum
    """,
    "lightning": """
        single-batched-fp32: all
        single-acc2-fp16: overflow growing-scale-resumed-at-3
        single-acc2-bf16: momentum
        single-acc2-fp32: own-order momentum-resumed-at-3-killed
        single-acc4-fp32: short-window
        single-acc4-fp64: uneven-batch
        ddp-w2-acc2-fp32: clip-norm two-groups unused buffers short-epochs own-order epoch-schedule
            momentum-resumed-at-3 adamw-resumed-at-3 many-tensors-resumed-at-3 short-epochs-resumed-at-3
            many-tensors-resumed-at-4 own-order-resumed-at-4 epoch-schedule-resumed-at-2
        ddp-w2-fp32: uneven-batch
        ddp-w3-acc2-fp64: all
    """,
    "mmengine": """
        single-batched-fp64: momentum
        single-acc2-bf16: short-window
        ddp-w2-acc2-bf16: short-window
        single-acc2-fp32: clip-value two-groups-clip adamw uneven-batch line short-epochs sparse frozen
            own-order-resumed-at-4 momentum-resumed-at-3-killed
        ddp-w2-acc2-fp32: momentum clip-norm two-groups own-order unused buffers sampler-pads epoch-schedule
            short-epochs momentum-resumed-at-3 momentum-resumed-at-4-on-3-ranks
        ddp-w2-acc2-fp64: many-clip-norm
        ddp-w3-acc2-fp32: short-epochs
    """,
    "poutyne": """
        single-batched-fp32: clip-value own-order epoch-schedule large-tensors epoch-schedule-resumed-at-2
        single-batched-fp64: adamw line
        single-acc2-fp32: adamw sgd adagrad short-window uneven-batch own-order epoch-schedule own-order-resumed-at-3
            clip-value many-clip-value unused-clip-value
        single-acc2-fp64: clip-value many-clip-norm finer-data two-workers
        single-acc3-fp64: short-window
        single-acc4-fp32: clip-value
        single-acc4-fp64: uneven-batch
    """,
    "pytorch_accelerated": """
        single-batched-fp32: momentum own-order large-tensors many-tensors-resumed-at-3
        single-batched-bf16: momentum
        single-batched-fp64: two-groups
        single-acc2-fp32: adamw adagrad clip-value many-clip-value frozen short-window uneven-batch short-epochs
            own-order own-order-resumed-at-3 short-epochs-resumed-at-3
        single-acc2-bf16: cast-weights clip-value
        single-acc2-fp64: finer-data two-workers
        single-acc3-bf16: decay
        single-acc4-fp64: uneven-batch
        ddp-w2-fp64: uneven-batch
        ddp-w2-fp32: two-groups ranks-start-apart
        ddp-w2-acc2-fp32: momentum clip-value many-clip-value short-window sampler-drops sampler-pads own-order
            many-tensors short-epochs two-layers sampler-pads-resumed-at-4 frozen-resumed-at-3 many-groups-resumed-at-3
        ddp-w2-acc2-fp64: line
        ddp-w3-acc2-fp32: sampler-pads
        ddp-w3-fp64: adamw
        ddp-w4-bf16: momentum
        ddp-w4-acc3-fp32: clip-value
    """,
    "sentence_transformers": """
        single-batched-fp32: all
        single-acc2-fp32: momentum momentum-resumed-at-3 many-tensors-resumed-at-4
        single-acc2-bf16: momentum
        ddp-w3-acc2-fp64: all
        ddp-w2-acc2-fp32: clip-norm two-groups buffers own-order short-window momentum-resumed-at-3
            many-tensors-resumed-at-4
    """,
    "skorch": """
        single-batched-fp64: momentum clip-norm adamw
        single-batched-fp32: momentum own-order epoch-schedule large-tensors epoch-schedule-resumed-at-2
            many-tensors-resumed-at-3
        single-batched-bf16: momentum two-groups
        single-acc2-fp32: momentum clip-norm epoch-schedule own-order frozen many-tensors-resumed-at-3
        single-acc3-bf16: momentum
        single-acc4-fp64: short-window
        ddp-w2-fp32: momentum two-groups adamw clip-norm uneven-batch own-order epoch-schedule many-tensors two-layers
            many-tensors-resumed-at-3
        ddp-w2-acc2-fp32: momentum clip-norm many-tensors short-window own-order-resumed-at-3
        ddp-w2-bf16: momentum
        ddp-w3-fp64: decay
        ddp-w3-bf16: clip-norm
        ddp-w4-fp32: momentum
    """,
    "speechbrain": """
        single-batched-fp32: all
        single-acc2-fp32: all
        single-acc2-bf16: all
        ddp-w2-fp32: all
        ddp-w2-acc2-bf16: all
        ddp-w2-acc2-fp32: momentum two-groups-clip own-order epoch-schedule short-epochs momentum-resumed-at-3
            momentum-resumed-at-3-killed
    """,
    "torchtnt": """
        single-batched-fp32: momentum epoch-schedule-resumed-at-2 momentum-resumed-at-4
        single-batched-bf16: momentum
        single-acc3-fp64: adamw
        single-acc2-fp32: own-order short-window momentum-resumed-at-3 short-epochs-resumed-at-3
            many-tensors-resumed-at-3 frozen-resumed-at-3
        single-acc4-fp64: uneven-batch
        single-acc2-fp64: uneven-batch
        ddp-w2-acc2-fp32: clip-norm clip-value two-groups sparse unused buffers short-epochs epoch-schedule own-order
            sampler-drops adamw-resumed-at-3 epoch-schedule-resumed-at-3 own-order-resumed-at-3 many-groups-resumed-at-3
            many-tensors-resumed-at-4 own-order-resumed-at-4 sampler-pads-resumed-at-4 momentum-resumed-at-3-twice
        ddp-w2-acc2-bf16: short-window
        ddp-w2-acc2-fp64: many-clip-norm
        ddp-w3-bf16: clip-value
        ddp-w3-acc2-fp32: short-epochs
        ddp-w4-acc3-fp64: adamw
        ddp-w2-fp64: uneven-batch
    """,
    "transformers": """
        single-batched-fp32: all
        single-acc2-fp32: momentum weighted many-tensors-resumed-at-4
        single-acc2-bf16: momentum
        ddp-w2-acc2-fp32: weighted clip-norm two-groups unused buffers short-window own-order momentum-resumed-at-3
            adamw-resumed-at-3 dropout-resumed-at-3 momentum-resumed-at-4-on-3-ranks many-tensors-resumed-at-4
            many-tensors-resumed-at-1
        ddp-w2-fp32: uneven-batch
        ddp-w3-acc2-fp64: all
    """,
    "trl": """
        single-batched-fp32: all
        single-acc2-fp32: momentum weighted
        single-acc2-bf16: momentum
        ddp-w2-acc2-fp32: weighted clip-norm two-groups buffers own-order short-window momentum-resumed-at-3
            many-tensors-resumed-at-1 many-tensors-resumed-at-4
        ddp-w3-acc2-fp64: all
    """,
    "keras": "",
}


def cases_of(name: str) -> list[str]:
    """What `conformance run` is asked for."""
    path, found = "", []
    for word in CASES[name].split():
        if word.endswith(":"):
            path = word[:-1]
        else:
            found.append(path if word == "all" else f"{path}-{word}")
    return found


@pytest.mark.parametrize("name", CASES)
def test_verdicts_are_those_of_the_published_report(name, tmp_path):
    judged = judged_by_command(tmp_path, f"conformance.frameworks.{name}", cases_of(name))
    found = {case.id: reasons(case) for case in judged}
    assert found == published(name, found)
    assert len(found) >= len(cases_of(name))
